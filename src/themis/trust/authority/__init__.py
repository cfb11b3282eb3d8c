"""Certificates of a service: its authority, the server's and its nodes' certificates, TLS contexts, first contact.

``ca`` issues certificates and alone needs the library ``cryptography``. ``contexts`` and ``contact`` use the standard library's
``ssl`` alone, for node agents and clients.
"""
