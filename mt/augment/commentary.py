"""Refusals, and remarks around a translation, of general language models.

A pattern counts only if the source has nothing of the kind: a translation in quotation marks is
right where the source is in quotation marks.
"""

import re

from mt.data.filters import has_markup
from mt.languages import base_language, language_name

_REFUSAL = re.compile(
    r"\bas an? (?:ai|artificial intelligence|(?:large )?language model)\b"
    r"|\b(?:sorry|afraid|apologi[sz]e|unfortunately|unable|not able|cannot|can't|won't)\b.{0,60}"
    r"\b(?:translat|assist|fulfil|comply|process|request|provide (?:a|the|this|that)|help with)"
    r"|\bals (?:eine? )?(?:ki|künstliche intelligenz|sprachmodell)\b"
    r"|\b(?:leid|leider|entschuldigung|kann|darf)\b.{0,60}"
    r"(?:übersetz|behilflich|\banfrage|nicht (?:weiter)?helfen|nicht bearbeiten)"
    r"|\ben tant qu'(?:ia|intelligence artificielle|assistant|modèle)"
    r"|\b(?:désolée?|regrette|ne peux pas|ne puis)\b.{0,60}(?:tradui|traduction|aider|demande)"
    r"|\b(?:siento|disculp\w+|no puedo)\b.{0,60}(?:traduc|ayudar|solicitud)"
    r"|\b(?:desculp\w+|não posso)\b.{0,60}(?:traduz|traduç|ajudar|solicita)"
    r"|\b(?:spiace|dispiace|non posso)\b.{0,60}(?:tradu|aiutar|richiesta)"
    r"|\b(?:helaas|spijt me|kan)\b.{0,60}(?:niet vertalen|niet helpen|verzoek)"
    r"|(?:извините|сожалению|не могу).{0,60}(?:перевести|перевод|помочь|запрос)"
    r"|(?:抱歉|对不起|對不起|无法|無法|不能).{0,30}(?:翻译|翻譯|协助|協助|请求|請求|提供)"
    r"|作为(?:一个|一款)?(?:ai|人工智能|语言模型)"
    r"|(?:申し訳|すみません|ごめん|翻訳).{0,40}(?:できません|できかねます|致しかねます)"
    r"|(?:죄송|번역).{0,40}(?:없습니다|불가능)"
)
_INABILITY = re.compile(
    r"\b(?:sorry|afraid|apolog\w+|unfortunately|unable|able|cannot|can't|can not|won't|will not"
    r"|ai|language model|leid|leider|entschuldigung|kann|können|darf|sprachmodell|ki"
    r"|désolée?|regrette|peux|puis|siento|disculp\w+|puedo|desculp\w+|posso|spiace|dispiace"
    r"|helaas|spijt|kan|ia)\b"
    r"|извин|сожален|могу|抱歉|对不起|對不起|无法|無法|不能|人工智能|申し訳|すみません|ごめん"
    r"|できません|죄송|없습니다"
)
"""Words of a source that may be translated by a refusal."""
_COLON = re.compile("[:：]")
_LABEL = re.compile(
    r"^.{0,60}?(?:translat\w+|übersetz\w*|traduc\w+|traduç\w+|traduz\w+|vertaling|tłumaczenie"
    r"|översättning|oversæt\w+|çeviri|перевод\w*|翻译|翻譯|译文|譯文|翻訳|訳文|번역|الترجمة|ترجمة)"
    r".{0,60}?[:：]"
)
_NOTE = re.compile(
    r"(?:^|[\s(（\[*.。])(?:(?:translator'?s )?notes?|n\.b\.|explanation|alternatively|literally"
    r"|anmerkung(?:en)?|hinweise?|erklärung|wörtlich|remarques?|explication|notas?|explicación"
    r"|explicação|nota bene|spiegazione|opmerking|toelichting|uwaga|примечани[ея]|пояснение"
    r"|注意?|註|说明|說明|备注|備註|注释|解释|補足|備考|참고)\**\s*[:：]"
)
_QUOTED = re.compile(r"[\"'“”„«»‘’‚‹›「『《].*[\"'“”„«»‘’‚‹›」』》][.!?。]?", re.DOTALL)
_QUOTE_AT_END = re.compile(r"^\s*[\"'“”„«»‘’‚‹›「『《`–—-]|[\"'“”„«»‘’‚‹›」』》`][.!?。]?\s*$")
_MARKDOWN = ("```", "**", "\n#")


def is_refusal(source: str, translation: str) -> bool:
    """Return True for a refusal to translate, unless the source itself apologises or declines."""
    if not _REFUSAL.search(_plain(translation)):
        return False
    return not _INABILITY.search(_plain(source))


def is_commentary(source: str, translation: str, target_language: str) -> bool:
    """Return True for a label or note with a colon, added quotation marks, or added markup."""
    text = _plain(translation)
    if not _COLON.search(source):
        names = {language_name(base_language(target_language)), target_language}
        label = "|".join(re.escape(name.lower()) for name in names)
        if _LABEL.search(text) or _NOTE.search(text) or re.match(rf"(?:{label})\s*[:：]", text):
            return True
    if _QUOTED.fullmatch(translation) and not _QUOTE_AT_END.search(source):
        return True
    if any(mark in translation and mark not in source for mark in _MARKDOWN):
        return True
    return has_markup(translation) and not has_markup(source)


def _plain(text: str) -> str:
    return text.replace("’", "'").lower()
