"""Objects under a URL: a bucket of an object store, or a folder on this machine. Synchronous; safe to share by threads.

`open_store` takes `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///folder` and plain
paths. Buckets need the package `obstore`, which is imported only for them. Credentials come from the environment
(`AWS_ACCESS_KEY_ID` and its like, `AWS_PROFILE`, web identity, container and instance roles), never from the URL. No
error, log line or `repr` holds them.

**One winner.** `put_new` creates an object or says that it exists. `replace` swaps an object only if its etag is still
the one given. Both are atomic among all machines. An etag may be a hash of the content, so whoever uses `replace` as a
lock puts something unique into the object.

**Retries.** A request that fails with 5xx, 429, 408, a timeout or a broken connection is tried again with exponential
backoff and jitter, at most `TRIES` times. Such a try may have taken effect all the same. If a later try of `put_new` or
`replace` then finds the object changed, and it holds exactly the bytes of this call, the call has won.

**Durability.** A folder is synced, file and names, before a call returns.
"""

from wireloom.store.base import AccessRefused, ObjectChanged, ObjectInfo, ObjectMissing, Store, StoreError
from wireloom.store.urls import is_url, open_store, shown_url

__all__ = [
    "AccessRefused",
    "ObjectChanged",
    "ObjectInfo",
    "ObjectMissing",
    "Store",
    "StoreError",
    "is_url",
    "open_store",
    "shown_url",
]
