"""Numbers in English words and in Chinese numerals."""

DIGITS = "零一二三四五六七八九"
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = [
    "zero",
    "ten",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
]
ORDINALS = [
    "zeroth",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
]


def english_number(number: int) -> str:
    """Spell a number up to 999 in English."""
    if number < 20:
        return ONES[number]
    if number < 100:
        rest = f"-{ONES[number % 10]}" if number % 10 else ""
        return TENS[number // 10] + rest
    rest = f" and {english_number(number % 100)}" if number % 100 else ""
    return f"{ONES[number // 100]} hundred{rest}"


def chinese_number(number: int) -> str:
    """Spell a number up to 999 with 100 as a multiple of 10 in Chinese numerals."""
    if number >= 100:
        head = ("两" if number // 100 == 2 else DIGITS[number // 100]) + "百"
        rest = number % 100
        if not rest:
            return head
        return head + (
            "零" + DIGITS[rest]
            if rest < 10
            else DIGITS[rest // 10] + "十" + (DIGITS[rest % 10] if rest % 10 else "")
        )
    if number < 10:
        return DIGITS[number]
    head = ("" if number < 20 else DIGITS[number // 10]) + "十"
    return head + (DIGITS[number % 10] if number % 10 else "")


def day_ordinal(day: int) -> str:
    """Spell an ordinal number up to 31st in English."""
    if day <= 20:
        return ORDINALS[day]
    return f"twenty-{ORDINALS[day - 20]}" if day < 30 else ("thirtieth", "thirty-first")[day - 30]
