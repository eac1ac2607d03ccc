"""Untranslated messages of gettext files (PO), and the header of templates (POT)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from gettext import c2py

from mt.data.exchange_formats import PO_ESCAPES, PoMessage, read_messages
from mt.data.placeholders import describe_changes, find_syntax
from mt.documents.inline import ICU, embed, has_branches
from mt.documents.segments import Group, Item, Options, Replacement
from mt.errors import DataError
from mt.languages import base_language

_NO_CHARSETS = frozenset({"CHARSET", "ASCII", "US-ASCII"})
_ESCAPES = str.maketrans(PO_ESCAPES)
_MANY = 5
"""A form for more numbers up to 1,000 than this needs all placeholders for msgfmt."""


@dataclass(frozen=True, slots=True)
class _Plurals:
    """Plural forms of a catalogue."""

    count: int
    singular: int = 0
    """Index of the form for the number 1."""
    is_shared: bool = False
    """True if many other numbers have that form, for example 21."""

    @classmethod
    def read(cls, count: int, formula: str) -> "_Plurals":
        """Return the plural forms by their formula; by number alone if it is damaged."""
        try:
            find_index = c2py(formula)
            indices = [find_index(number) for number in range(1001)]
        except (ValueError, ArithmeticError, RecursionError):
            indices = [count]
        if max(indices) >= count:
            return cls(count)
        return cls(count, indices[1], is_shared=indices.count(indices[1]) > _MANY)


@dataclass(frozen=True, slots=True)
class _Catalogue:
    """Properties of a catalogue by its header."""

    header: str
    """Text of the header, complete for the target language."""
    plurals: _Plurals | None
    lacks_plurals: bool
    """True for a template that does not declare the plural forms of the target language."""
    in_source: str
    """Language of a template in the source language, or empty."""
    note: str

    @classmethod
    def read(cls, header: PoMessage | None, options: Options) -> "_Catalogue":
        """Read the header; complete that of a template, but for the formula of plural forms.

        A template is without language, in the source language, fuzzy, or named `.pot`.
        """
        name, target = options.name, options.target
        text = header.forms[0].text if header and header.forms else ""
        lines = (line.partition(":") for line in text.split("\n"))
        fields = {field: value.strip() for field, _, value in lines}
        charset = text.partition("charset=")[2].partition("\n")[0].partition(";")[0].strip()
        if charset.upper() not in {"", "UTF-8", "UTF8", *_NO_CHARSETS}:
            raise DataError(
                f"{name}: its header declares the charset {charset}, translations are UTF-8; "
                "convert it with `msgconv --to-code=UTF-8`"
            )
        code = fields.get("Language", "")
        base = base_language(code.partition("@")[0])
        is_of_target = base == base_language(target)
        in_source = not is_of_target and base == base_language(options.source)
        if code and not (is_of_target or in_source or target == "und"):
            raise DataError(
                f"{name}: `Language` is `{code}`, but the model translates from "
                f"`{options.source}` to `{target}`; make a catalogue with "
                f"`msginit --locale={_locale(target)}`"
            )
        parts = (part.partition("=") for part in fields.get("Plural-Forms", "").split(";"))
        declared = {part.strip(): value.strip() for part, _, value in parts}
        count = declared.get("nplurals", "")
        plurals = None
        if count.isdecimal() and 0 < int(count) < 100:
            plurals = _Plurals.read(int(count), declared.get("plural", ""))
        is_template = (header is None or header.is_fuzzy or in_source or name.endswith(".pot")) or (
            charset == "CHARSET" or count == "INTEGER" or fields.get("Language") == ""
        )
        if is_template:
            text = _set_field(text, "Language", _locale(target))
            text = _set_field(text, "MIME-Version", "1.0")
            text = _set_field(text, "Content-Type", "text/plain; charset=UTF-8")
            text = _set_field(text, "Content-Transfer-Encoding", "8bit")
        if count == "INTEGER":
            before, _, after = text.partition("Plural-Forms:")
            text = before + after.partition("\n")[2]
        note = f"its `Language` `{code}` is now `{_locale(target)}`" if in_source else ""
        lacks_plurals = is_template and (plurals is None or in_source)
        return cls(text, plurals, lacks_plurals, code if in_source else "", note)


def _locale(language: str) -> str:
    """Return a language as gettext writes it: `pt_BR` for pt-BR, `de` for deu_Latn."""
    first, *more = language.replace("-", "_").split("_")
    return "_".join([first, *more]) if base_language(first) == first else base_language(language)


def _set_field(header: str, name: str, value: str) -> str:
    """Return a header with a field set."""
    before, is_set, old = f"\n{header}".partition(f"\n{name}:")
    line = f"{name}: {value}\n"
    if is_set:
        return f"{before}\n{line}".removeprefix("\n") + old.partition("\n")[2]
    return header + "\n" * (header[-1:] not in {"", "\n"}) + line


def read_po(source: str, options: Options) -> Iterator[Item]:
    """Yield the messages without a translation, and the completed header of a template.

    The form for the number 1 is the singular. Obsolete and fuzzy messages stay as they are, and
    messages with another number of plural forms than the header declares. Raises DataError with the
    line if the file is damaged, of another language, or has a charset other than UTF-8.
    """
    line_end = "\r\n" if "\r\n" in source else "\n"
    messages = [*read_messages(source, options.name)]
    for message in messages:
        if not message.forms:
            raise DataError(f"{options.name}: line {message.line}: the message has no `msgstr`")
    header = next((message for message in messages if message.is_header), None)
    catalogue = _Catalogue.read(header, options)
    written = _quote(catalogue.header, line_end)
    if header is None and not all(message.forms[0].text for message in messages):
        yield Replacement(0, 0, f'msgid ""{line_end}msgstr {written}{line_end}{line_end}')
    for message in messages:
        form = message.forms[0]
        if not message.is_header:
            yield from _read_message(source, message, catalogue, line_end, fuzzy=options.fuzzy)
        elif form.text != catalogue.header:
            if message.is_fuzzy:
                start = source.rfind("\n", 0, message.flags) + 1
                end = source.find("\n", start) + 1
                flags = map(str.strip, source[message.flags : end].split(","))
                other_flags = ", ".join(flag for flag in flags if flag not in {"", "fuzzy"})
                line = f"#, {other_flags}{line_end}" if other_flags else ""
                yield Replacement(start, end, line)
            yield Replacement(form.start, form.end, written, note=catalogue.note)


def _read_message(
    source: str, message: PoMessage, catalogue: _Catalogue, line_end: str, *, fuzzy: bool
) -> Iterator[Item]:
    """Yield the change that fills the empty translations of a message, all of them or none.

    A form without text to translate is a copy where others are not.
    """
    forms, syntax = message.forms, find_syntax(message.flag_names)
    singular = message.strings["msgid"].text
    plural = message.strings["msgid_plural"].text if "msgid_plural" in message.strings else None
    plurals = (plural is not None and catalogue.plurals) or _Plurals(len(forms))
    has_text, is_full = any(form.text for form in forms), all(form.text for form in forms)
    reason = ""
    if message.is_fuzzy:
        reason = "fuzzy messages"
    elif plurals.count != len(forms):
        reason = "messages with another number of plural forms than the header declares"
    elif not is_full and any(map(has_branches, (singular, plural or ""))):
        reason = ICU
    elif catalogue.in_source and is_full:
        reason = f"messages in `{catalogue.in_source}`"
    elif catalogue.lacks_plurals and plural is not None:
        reason = "messages with plural forms, which `msginit` declares"
    if reason:
        yield Replacement(message.start, message.start, "", reason)
        return
    # No other number has the form of 1, or it has the placeholders of the plural: 21 is no "one".
    has_singular = plural is None or (
        plurals.count > 1 and not (plurals.is_shared and describe_changes(plural, singular, syntax))
    )
    write = partial(_quote, line_end=line_end)
    items: list[Replacement | Group] = []
    for index, form in enumerate(forms):
        if form.text:
            continue
        is_singular = has_singular and (plural is None or index == plurals.singular)
        original = singular if is_singular else plural or ""
        filled = list(embed(form.start, form.end, None, original, write, syntax))
        has_text = has_text or bool(filled)
        items += filled or [Replacement(form.start, form.end, write(original))]
    if items and has_text:
        is_first = message.flags < 0
        place = message.start if is_first else message.flags
        flag = f"#, fuzzy{line_end}" if is_first else " fuzzy,"
        items.insert(0, Replacement(place, place, flag if fuzzy else ""))
        yield Group.of(source, items, mark=str if fuzzy else flag.__add__)
    elif items:
        yield Replacement(message.start, message.start, "", "messages without letters")


def _quote(text: str, line_end: str) -> str:
    """Return a text as a string, with one line of the file for each of several lines."""
    several = "\n" in text.rstrip("\n")
    opening, between = (f'""{line_end}"', f'"{line_end}"') if several else ('"', "")
    escaped = text.translate(_ESCAPES).replace("\\n", f"\\n{between}")
    return opening + f'{escaped}"'.removesuffix(f'{line_end}""')
