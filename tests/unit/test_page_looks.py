"""The file that says how the pages look: what it may set, and that nothing in it becomes other CSS or policy."""

from __future__ import annotations

import pathlib
import re

import pytest

from emq.runtime.errors import InvalidSettings
from emq_web.pages import looks

WRONG = {
    "not a colour": ('[dark]\nink = "red"', "dark.ink = 'red' must be a colour, such as #1a6752"),
    "CSS in a colour": ('[light]\nink = "#000000;}*{color:red"', "must be a colour"),
    "CSS in a font": ('font = "Arial; } * { display: none"', "must be names of fonts, with commas"),
    "an unknown variable": ('[light]\naccnt = "#000000"', "there is no key 'light.accnt'; did you mean 'accent'"),
    "an unknown key": ('colours = "#000000"', "there is no key 'colours'"),
    "a pale text": ('[light]\nsoft = "#bbbbbb"', "light.soft = #bbbbbb on ground = #f6f7f5 has a contrast of 1.8"),
    "a policy in an origin": ('frame_origins = ["https://a.example; script-src *"]', "must be the origin of a site"),
    "every site": ('frame_origins = ["*"]', "frame_origins has '*', which must be the origin"),
    "a site without TLS": ('frame_origins = ["http://a.example"]', "must be the origin of a site"),
    "a path": ('frame_origins = ["https://a.example/app"]', "must be the origin of a site"),
    "a script as logo": ('logo = "logo.js"', "logo = 'logo.js' must be a .svg or .png file"),
    "no such logo": ('logo = "none.png"', "no such file or directory"),
    "no TOML": ("name = ", "is not valid TOML"),
    "a large file": (f"# {'x' * looks.MOST_BYTES}", "is larger than 256 KiB"),
}


def look(directory: pathlib.Path, text: str) -> looks.Look:
    path = directory / "look.toml"
    path.write_text(text)
    return looks.load(str(path))


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named_in_one_line(tmp_path: pathlib.Path, case: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(WRONG[case][1])) as refusal:
        look(tmp_path, WRONG[case][0])
    assert "\n" not in str(refusal.value)
    assert "setting api_portal" in str(refusal.value)


def test_a_file_sets_variables_of_the_style_sheet_by_scheme(tmp_path: pathlib.Path) -> None:
    (tmp_path / "us.png").write_bytes(b"a picture")
    found = look(
        tmp_path,
        'frame_origins = ["https://*.example.com", "http://localhost:3000"]\nname = "Us"\nlogo = "us.png"\n'
        'font = "Inter, sans-serif"\n[light]\naccent = "#7A1FA2"\n[dark]\naccent = "#e0b0ff"\n',
    )
    assert found.frame_origins == ("https://*.example.com", "http://localhost:3000")
    assert found.css == (
        ":root { --font: Inter, sans-serif; }\n"
        "@media (prefers-color-scheme: light) { :root { --accent: #7A1FA2; } }\n"
        "@media (prefers-color-scheme: dark) { :root { --accent: #e0b0ff; } }\n"
    )
    assert found.files == {"look.css": found.css.encode(), "logo.png": b"a picture"}


def test_without_a_file_nobody_frames_the_pages_and_they_have_their_own_look() -> None:
    assert looks.load("") == looks.Look()


def test_the_own_colours_have_contrast_enough(tmp_path: pathlib.Path) -> None:
    assert look(tmp_path, 'name = "Us"').css == ""
