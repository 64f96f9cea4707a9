"""What the README counts is what the library holds."""

import re
from pathlib import Path

import pytest

from conformance.library.reading import load_library

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PAGES = {
    "contract.md": "qsa_prepare",
    "contract-sparse-attention-indexer.md": "sparse_attention_indexer",
    "contract-sparse-attention.md": "sparse_attention",
    "contract-sparse-attention-pipeline.md": "sparse_attention_pipeline",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_table_of_operations(page):
    row = next(line for line in README.splitlines() if line.startswith("|") and f"(docs/{page})" in line)
    clauses, cases = (int(cell.replace(",", "")) for cell in re.findall(r"\| ([\d,]+) ", row))
    library = load_library(PAGES[page])
    assert (clauses, cases) == (len(library.operation.clauses), len(library.cases))
