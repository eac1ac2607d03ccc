"""Translations in another language than the one asked for."""

import pytest

from mt.evaluation.off_target import off_target

pytest.importorskip("py3langid")

GERMAN = "das Wetter war sehr schön und wir gingen in den Wald"
ENGLISH = "the weather was very fine and we went into the woods"


def test_only_long_texts_are_judged_and_those_in_other_languages_counted() -> None:
    found = off_target(
        [GERMAN, ENGLISH, "the", "", ENGLISH],
        [GERMAN, GERMAN, "das", "", ENGLISH],
        target_language="de-AT",
    )
    assert (found.judged, found.found) == (3, 2)
    assert (found.references_judged, found.references_found) == (3, 1)
    assert found.as_record()["rate"] == 2 / 3
    told = "off target: 2 of 3 translations are not in de-AT, 66.7%; of the references 33.3% (py3l"
    assert found.as_text().startswith(told)


def test_what_cannot_be_judged_has_no_rate() -> None:
    for language, text in (("de", "kurz"), ("xyz", ENGLISH)):
        found = off_target([text], [text], target_language=language)
        assert found.as_record()["rate"] is None
        assert "no translation is long enough to judge" in found.as_text()
