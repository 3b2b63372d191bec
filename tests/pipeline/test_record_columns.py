"""Records and addresses as columns, against the readable reader."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal.test_index import segment
from wireloom.journal import blocks, index
from wireloom.pipeline import record_columns
from wireloom.pipeline.decode import _event, events_of
from wireloom.pipeline.name_hash import name_hash, name_hashes
from wireloom.pipeline.segment_runs import Indexed
from wireloom.pipeline.steps.sessions import event_rows


@settings(deadline=None, max_examples=100)
@given(segment())
def test_records_have_the_names_and_details_that_the_blocks_say(raw):
    data = np.frombuffer(raw, np.uint8)
    found = index.index_blocks(data, 0, len(raw))
    slow = [block for block in blocks.blocks(raw, 0, len(raw)) if block.record is not None]
    records = record_columns.find_records(data, found)
    names = [*record_columns.NAMES, None]
    assert [names[code] for code in records.name] == [
        block.record if block.record in record_columns.NAMES else None for block in slow
    ]
    assert record_columns.parsed(data, found, records) == slow
    if len(found):
        source, destination = record_columns.address_columns(data, found.tags_start)
        every = list(blocks.blocks(raw, 0, len(raw)))
        assert source.to_pylist() == [block.source for block in every]
        assert destination.to_pylist() == [block.destination for block in every]


@settings(deadline=None, max_examples=100)
@given(segment())
def test_events_are_what_the_records_say_one_by_one(raw):
    data = np.frombuffer(raw, np.uint8)
    found = index.index_blocks(data, 0, len(raw))
    records = record_columns.find_records(data, found)
    slow = record_columns.parsed(data, found, records.of("opened", "closed", "refused", "started"))
    assert events_of(Indexed(data, found), records).to_pylist() == event_rows([_event(b) for b in slow]).to_pylist()


def test_details_of_another_form_are_read_one_by_one():
    tags = blocks.encode_tags("hsp", "[::1]:5", "10.0.0.1:70000")
    comments = [
        blocks.record_comment("opened", {"peer": "a", "size": 3, "deep": {"x": [1]}}, 1),
        blocks.record_comment("closed", {"peer": 7, "reason": ["odd"]}, 2),
    ]
    raw = b"".join(blocks.encode_packet(n, 5000 * n, tags, 0, b"", each, 1) for n, each in enumerate(comments))
    data = np.frombuffer(raw, np.uint8)
    found = index.index_blocks(data, 0, len(raw), check_hash=False)
    rows = events_of(Indexed(data, found), record_columns.find_records(data, found)).to_pylist()
    assert [(row["what"], row["connection"], row["source"], row["size"]) for row in rows] == [
        ("opened", f"{1:016x}", "a", 3),
        ("closed", f"{2:016x}", "7", 0),
    ]


@given(st.lists(st.none() | st.text(max_size=140)))
def test_many_hashes_are_those_of_single_names(names):
    assert name_hashes(pa.array(names, pa.string())).tolist() == [name_hash(name or "") for name in names]
