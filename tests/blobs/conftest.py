"""Fixtures of the tests of blobs: S3 endpoints, each started once, and a bucket in one of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from counterfoil import Blobs
from tests.blobs.endpoints import SERVERS, Endpoint, Endpoints
from tests.blobs.s3_support import Meddler, bucket
from tests.blobs.support import MIB


@pytest.fixture(scope="session")
def endpoints() -> Iterator[Endpoints]:
    running = Endpoints()
    yield running
    running.close()


@pytest.fixture(params=SERVERS)
def endpoint(request: pytest.FixtureRequest, endpoints: Endpoints) -> Endpoint:
    """Each endpoint in turn: what is shown holds of all of them."""
    return endpoints.get(request.param)


@pytest.fixture
def ministack(endpoints: Endpoints) -> Endpoint:
    """The endpoint whose conditions hold."""
    return endpoints.get("ministack")


@pytest.fixture
def blobs(endpoint: Endpoint, tmp_path: Path) -> Blobs:
    return bucket(endpoint, tmp_path / "journal", part_bytes=5 * MIB, settle_s=0.0)


@pytest.fixture
def meddler(endpoint: Endpoint) -> Iterator[Meddler]:
    """Somebody in between."""
    with Meddler(endpoint) as between:
        yield between
