"""The cases that are compared: calls at the shapes of released models, by the names that docs/results has for them."""
import csv
import dataclasses
import re

# Op, and its name in README.md's table.
OPS = {
    "rms_norm_pair": "query and key norm",
    "dense_attn_decode": "dense decode",
    "sparse_attn_decode": "sparse decode",
    "sparse_attn_prefill": "sparse prefill",
    "dense_attn_prefill": "dense prefill",
    "qnorm_rope_kv_insert": "norm, RoPE, insert",
}
# The rows of README.md's table that a GPU has.
README = [
    ("rms_norm_pair", "1 token"),
    ("dense_attn_decode", "128 heads, 64 x 4096"),
    ("sparse_attn_decode", "V4, 128 heads, 128 rows, 128 requests"),
    ("sparse_attn_decode", "V4, 64 heads, 128+512 rows, 128 requests"),
    ("sparse_attn_decode", "V4, 128 heads, 128+1024 rows, 128 requests"),
    ("sparse_attn_prefill", "4096 tokens, 128 heads, 2048 rows, D 512"),
    ("dense_attn_prefill", "4096 x 4096, causal, 128 heads"),
    ("qnorm_rope_kv_insert", "64 heads, 4096 tokens"),
]
# Values of a case's name. `values` is how large queries are, or how caches are quantised; "mixed" lengths are those of testkit/cases/ragged.h.
VALUES = r"(?:, (?P<values>flat|peaked|holes|scales))?"
NAMES = {
    "rms_norm_pair": r"(?P<tokens>\d+) tokens?",
    "dense_attn_decode": r"(?P<heads>\d+) heads, (?P<requests>\d+) x (?P<rows>\d+)(?:, (?P<mixed>mixed))?(?:, (?P<queries>two|four) tokens)?",
    "sparse_attn_decode": r"(?P<model>V4|V3\.2), (?P<heads>\d+) heads, (?P<rows>\d+)(?:\+(?P<selected>\d+))? rows, (?P<requests>\d+) requests?"
                          r"(?: of (?P<queries>two) tokens)?" + VALUES,
    "sparse_attn_prefill": r"(?P<tokens>\d+) tokens, (?P<heads>\d+) heads, (?P<rows>\d+) rows, D (?P<dim>\d+)" + VALUES,
    "dense_attn_prefill": r"(?P<queries>\d+) x (?P<keys>\d+), causal, (?P<heads>\d+) heads",
    "qnorm_rope_kv_insert": r"(?P<heads>\d+) heads, (?P<tokens>\d+) tokens?",
}
NUMBERS = {"two": 2, "four": 4}


class Refused(Exception):
    """Input that tools/compare/run cannot use: exit code 2."""


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    name: str

    def shape(self):
        """What the name says, as {"heads": 64, "values": "flat"}: numbers as int, 0 for a number that it does not say."""
        found = re.fullmatch(NAMES[self.op], self.name)
        if not found:
            raise Refused(f"'{self.op}', '{self.name}' is no case that tools/compare knows")
        words = ("model", "values", "mixed")
        return {key: value or "" if key in words else NUMBERS.get(value) or int(value or 0) for key, value in found.groupdict().items()}


def readme_cases():
    return [Case(*names) for names in README]


def recorded_cases(results):
    """Every case of a GPU in a folder such as docs/results, of the ops that are compared."""
    cases = {}
    for file in sorted(results.glob("*.csv")):
        with file.open(newline="") as stream:
            for row in csv.DictReader(stream):
                if "median_us" in row and row["op"] in OPS and not row["gpu"].startswith("none"):
                    cases[Case(row["op"], row["case"])] = None
    return sorted(cases, key=lambda case: list(OPS).index(case.op))
