"""The app of a host on the command line: a module's app, or a bare one."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback

from emq.app import App
from emq.runtime import errors
from emq.runtime.passwords import hide_password
from emq.runtime.settings import Settings
from emq_cli.session import Session

log = logging.getLogger(__name__)

DEFAULT_ATTRIBUTE = "app"


def load(text: str) -> App:
    """Import the `App` with the user's handlers.

    Args:
        text: `module` or `module:attribute`; the attribute is "app" if left out. Modules are looked for in the
            current directory too.

    Raises:
        InvalidSettings: no such module or attribute, it is no `App`, or importing it failed; the text says where.
    """
    module_name, _, attribute = text.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except errors.InvalidSettings as exc:  # as in `emq.App()` at the top of the module
        raise errors.InvalidSettings(f"app {text!r} cannot be imported: {exc}") from exc
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise errors.InvalidSettings(f"app {text!r}: there is no module {exc.name!r} here") from exc
        raise errors.InvalidSettings(f"app {text!r} needs the module {exc.name!r}; install it") from exc
    except Exception as exc:  # a user's module may fail with anything
        frame = traceback.extract_tb(exc.__traceback__)[-1]
        place, what = f"{frame.filename}, line {frame.lineno}", str(exc)
        if isinstance(exc, SyntaxError):  # the frame is in the import system
            place, what = f"{exc.filename}, line {exc.lineno}", exc.msg
        raise errors.InvalidSettings(
            f"app {text!r} cannot be imported: {type(exc).__name__}: {what} ({place})"
        ) from exc
    found = module
    for part in attribute.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not isinstance(found, App):
        raise errors.InvalidSettings(f"app {text!r}: {attribute!r} in {module.__file__} is not an emq.App; name one")
    return found


def app_of(session: Session) -> App:
    """Return the app for a host, not open yet: the app that the settings name, or an app without handlers.

    The module's own app keeps its arguments; options of the command line override them. The host opens this app, so
    its handlers publish through it, to the same store.
    """
    asked = session.settings
    if not asked.app:
        return session.app(recorded=True, patient=True, create=True)
    app = load(asked.app)
    overrides = {"app": asked.app, **{name: value for name, value in session.overrides.items() if value is not None}}
    app.configure(session.settings_file, patient=True, **overrides)
    for name in ("store", "database", "environment"):
        given, kept = getattr(asked, name), getattr(app.settings, name)
        if given not in (kept, getattr(Settings(), name)):
            log.warning(
                "%s gives %s=%r itself, which goes before the %r of the environment or the settings file",
                *(asked.app, name, hide_password(kept), hide_password(given)),
            )
    return app
