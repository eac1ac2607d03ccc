import pytest

from mt.evaluation.off_target import off_target

pytest.importorskip("py3langid")

GERMAN = "das Wetter war sehr schön und wir gingen in den Wald"
ENGLISH = "the weather was very fine and we went into the woods"


def test_long_texts_in_other_languages_are_counted() -> None:
    found = off_target(
        [GERMAN, ENGLISH, "the", "", ENGLISH],
        [GERMAN, GERMAN, "das", "", ENGLISH],
        target_language="de-AT",
    )
    assert (found.judged, found.found) == (3, 2)
    assert (found.references_judged, found.references_found) == (3, 1)
    assert found.as_record()["rate"] == 2 / 3
    line = "off target: 2 of 3 translations are not in de-AT, 66.7%; of the references 33.3% (py3l"
    assert found.as_text().startswith(line)


def test_texts_that_cannot_be_judged_have_no_rate() -> None:
    for language, text in (("de", "kurz"), ("xyz", ENGLISH)):
        found = off_target([text], [text], target_language=language)
        assert found.as_record()["rate"] is None
        assert "no translation is long enough to judge" in found.as_text()
