"""Embedding: what PyTorch's own does, tokens that are no row, rows that many tokens share, large
tables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from membound.kernels.dtypes import DType, bfloat16, float32
from membound.kernels.inputs import make_inputs
from membound.kernels.operation import DirectionName
from membound.kernels.training import embedding
from membound.tests.emulator.run import CATALOGUE, beyond, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import Libraries, Planner
from torch.nn import functional

ONE_ROW = {"tokens": 2100, "vocabulary": 1, "columns": 40}
WIDE = {"tokens": 4, "vocabulary": 5, "columns": 4096}
NARROW = WIDE | {"columns": 24}


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    asked: list[tuple[DirectionName, Mapping[str, int], DType]] = [
        ("forward", NARROW, float32),
        ("forward", WIDE, bfloat16),
        ("backward", ONE_ROW, float32),
        ("backward", WIDE, bfloat16),
    ]
    planned = Libraries()
    for direction, dims, dtype in asked:
        prepare(spec_of("embedding", direction, dims, dtype), Planner(planned))
    planned.compile()
    return planned


def test_tokens_are_words_and_reach_both_ends_of_the_table() -> None:
    index = embedding.index_of(8192, 50257)
    assert index[0] == 50256 and index[-1] == 0
    assert index.min() >= 0 and index.max() < 50257
    assert torch.bincount(index).max() > 300  # the most frequent word of 8192
    order, slots, rows = embedding.sorted_tokens(8192, 50257)
    assert torch.equal(torch.unique(index)[slots.long()], index[order])
    assert rows == len(torch.unique(index)) and torch.equal(order.sort().values, torch.arange(8192))


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary is 0"):
        CATALOGUE.operations["embedding"].directions(
            {"tokens": 4, "vocabulary": 0, "columns": 8}, float32
        )


def test_the_gradient_is_that_of_pytorch() -> None:
    tokens, vocabulary, columns = 300, 40, 6
    dims = {"tokens": tokens, "vocabulary": vocabulary, "columns": columns}
    directions = CATALOGUE.operations["embedding"].directions(dims, float32)
    assert directions.backward is not None
    table = torch.randn(vocabulary, columns, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(tokens, columns, dtype=torch.float64)
    index = embedding.index_of(tokens, vocabulary)
    (gradient,) = torch.autograd.grad(functional.embedding(index, table), table, dy)
    order, slots, rows = embedding.sorted_tokens(tokens, vocabulary)
    before = torch.randn(rows, columns, dtype=torch.float64)
    got = directions.backward.reference(dy, order, slots, before)
    torch.testing.assert_close(got, before + gradient[torch.unique(index)])
    assert torch.equal(embedding.forward(index, table), table[index])


def test_a_token_that_is_no_row_gives_nan(libraries: Libraries) -> None:
    table = torch.randn(5, 24)
    index = torch.tensor([4, -1, 5, 2**40])
    spec = spec_of("embedding", "forward", NARROW, float32)
    y = run_cuda(libraries, spec, {"index": index, "table": table})["y"]
    assert torch.equal(y[0], table[4]) and y[1:].isnan().all()
    assert embedding.forward(index, table)[1:].isnan().all()


def test_a_row_that_66_pieces_share(libraries: Libraries) -> None:
    inputs = make_inputs(CATALOGUE.operations["embedding"], "backward", ONE_ROW, float32, seed=1)
    inputs["dy"][7] = 1e4  # a token left out, or added twice, is seen
    spec = spec_of("embedding", "backward", ONE_ROW, float32)
    got = run_cuda(libraries, spec, inputs)["dtable"]
    exact = inputs["before"].double() + inputs["dy"].double().sum(0)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=0)


def test_rows_of_tables_beyond_two_billion(libraries: Libraries) -> None:
    rows = 2**31 // 4096 + 2
    dims = {"tokens": 2, "vocabulary": rows, "columns": 4096}
    buffers, launch = beyond(libraries, spec_of("embedding", "forward", dims, bfloat16))
    buffers["table"][-1].normal_()  # of the first token
    buffers["index"][1] = rows - 1
    launch()
    assert torch.equal(buffers["y"][1], buffers["table"][-1])

    dims = {"tokens": 2 * rows, "vocabulary": 50257, "columns": 4096}
    buffers, launch = beyond(libraries, spec_of("embedding", "forward", dims, bfloat16))
    buffers["table"][0].normal_()  # of the last token
    launch()
    assert torch.equal(buffers["y"][-1], buffers["table"][0])

    buffers, launch = beyond(libraries, spec_of("embedding", "backward", dims, bfloat16))
    last = (2 * rows - 1) // 32 * 32  # the last piece: its rows, but for one that begins before
    places, slots = buffers["order"][last:], buffers["slots"][last:]
    whole = slots > buffers["slots"][last - 1]
    assert places[whole].max() > rows
    for token in places:
        buffers["dy"][token].normal_()
    begun = int(slots[whole][0])
    exact = torch.zeros(len(buffers["dtable"]) - begun, 4096, dtype=torch.float64)
    exact.index_add_(0, slots[whole].long() - begun, buffers["dy"][places[whole]].double())
    launch()
    got = buffers["dtable"][begun:].double()
    torch.testing.assert_close(got, exact, rtol=2.0**-7, atol=2.0**-7)
