"""Lengths of the translations of 200 short inputs: words, numbers, titles, other languages.

    python bench/short_inputs.py RUN [--set KEY=VALUE ...]

Prints the inputs whose translation has more than three times their tokens, end marks included, and
more than three times their characters, of which an ideograph counts as three; and counts by status.
"""

import argparse
from collections import Counter

from mt import Translator
from mt.decoding.second_search import is_too_long

WORDS = """
OK|ok|Yes|No|yes.|no!|Hello|Hi|Thanks|Thank you|Please|Sorry|Help|Stop|Go|Wait|Welcome|Goodbye
house|water|dog|Monday|March|blue|seven|eat|quickly|beautiful|computer|I|a|the|and|?|why|Why?
Home|Search|Settings|Log in|Sign up|Contact us|About|Next page|Terms of use|All rights reserved
Chapter 1|Part II|Table of contents|The Old Man and the Sea|War and Peace|Figure 3.2|Mr. Smith
London|Paris|Berlin|Anna|NATO|USA|UN|GPU|PDF|e.g.|etc.|vs.|km/h|10 km|5 kg|3 p.m.|No. 7|Dr.
Hallo|Ja|Nein|Auf Wiedersehen|Entschuldigung|Inhalt|Danke|Bitte|Guten Morgen|Haus|Wasser|Hund|Montag
schön|Ich|Straße|Öl|Tschüss
Bonjour|Oui|Non|Merci|S'il vous plaît|Au revoir|maison|chien|lundi|Je suis fatigué.|Ça va ?
Hola|Sí|Gracias|Buenos días|casa|perro|¿Qué?|Ciao|Grazie|Olá|Obrigado|Hej|Tack|Dzień dobry|Merhaba
你好|谢谢|再见|是|不|水|房子|狗|星期一|为什么？|我|早上好|北京|请|好|你好！|我很累。|图书馆|第一章|对不起
こんにちは|ありがとう|はい|いいえ|水|犬|東京|なぜ？|안녕하세요|감사합니다|네|물|서울
Привет|Да|Нет|Спасибо|дом|вода|Москва|Почему?|Γειά|Ευχαριστώ|שלום|مرحبا|नमस्ते|สวัสดี|Xin chào
0|1|7|12|42|100|1999|2024|3.14|1,000|1,000,000|50 %|$5|€20|12:30|2024-05-03|3/4|-5|+49 30 123456
...|!!!|?|-|—|*|😀|👍🏽|❤|{name}|%s|$HOME|https://example.org|a@example.org|#1|@user|C++|x = 1
"""


def main() -> None:
    """Translate the inputs and print those with a long translation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    translator = Translator.load(given.run, overrides=given.set)
    inputs = [text for line in WORDS.split("\n") for text in line.split("|") if text]
    long, statuses = 0, Counter[str]()
    for translation in translator.stream(inputs):
        statuses[translation.status] += 1
        if any(map(is_too_long, translation.alternatives[0].parts)):
            long += 1
            print(f"{translation.source} -> {translation.text}")
    print(f"{len(inputs)} inputs, {long} of them with a long translation; {dict(statuses)}")


if __name__ == "__main__":
    main()
