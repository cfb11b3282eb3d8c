"""Files of the console, each under an address with its hash, so that browsers keep it. The look is shared with the report."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import Response

from themis.errors import UnknownName
from themis.report import look
from themis.report.look.palette import APP_COLOURS
from themis.service.web.sessions import digest

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FOR_GOOD = "public, max-age=31536000, immutable"


class Static:
    """All files, in memory: name -> (bytes, media type, hash)."""

    def __init__(self) -> None:
        root = files("themis.service.web").joinpath("static")
        folders = (root, root.joinpath("vendor"))
        found = {path.name: path.read_bytes() for folder in folders for path in folder.iterdir() if path.is_file()}
        scripts = {name: look.text(name).encode() for name in look.FILES if name.endswith(".js")}
        found = {**scripts, **found, "look.css": (style() + found["console.css"].decode()).encode()}
        self.files = {
            name: (data, KINDS[kind], digest(data))
            for name, data in found.items()
            if (kind := name.rpartition(".")[2]) in KINDS
        }

    def url(self, name: str) -> str:
        """The address of a file."""
        return f"/console/static/{self.files[name][2]}/{name}"

    def response(self, path: str) -> Response:
        """A file.

        Raises
        ------
        UnknownName : no file has this name.
        """
        given, _, name = path.rpartition("/")
        if name not in self.files:
            raise UnknownName("file", name[:100], self.files)
        data, kind, hashed = self.files[name]
        # A page of another version of the service asks for another hash: browsers must not keep this file under it.
        headers = {"Cache-Control": FOR_GOOD} if given == hashed else {}
        return Response(data, headers=headers, media_type=kind)


def style() -> str:
    """Colours, components of pages, and a class for each colour of a user: no style stands in a page itself."""
    classes = "".join(f".a{i} {{ color: var(--a{i}); fill: var(--a{i}); }}\n" for i in range(len(APP_COLOURS)))
    return look.tokens() + look.text("base.css") + classes
