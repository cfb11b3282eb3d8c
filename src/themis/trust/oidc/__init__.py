"""Sign-in with an OpenID Connect provider: what the service asks it, and which answers it accepts. Needs the extra ``oidc``."""
