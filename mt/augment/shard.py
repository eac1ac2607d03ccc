"""One of several equal parts of a long work, so that several processes can share it."""

import re
from dataclasses import dataclass

from mt.errors import UserError


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `of`, from 1: lines that follow each other."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `2/8`; raise UserError for anything but a part that there is."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"--shard {text}: say which part of how many, such as 2/8; the first is 1/8"
            )
        return cls(int(match[1]), int(match[2]))

    def lines(self, total: int) -> range:
        """Return the places of its lines, from 0, among `total`."""
        return range(total * (self.number - 1) // self.of, total * self.number // self.of)

    def named(self, name: str) -> str:
        """Return the name of its files; names in the order of the alphabet are in that of lines."""
        if self.of == 1:
            return name
        return f"{name}.{self.number:0{len(str(self.of))}}-of-{self.of}"

    def all(self) -> list["Shard"]:
        """Return all parts of the same work."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]
