"""Who owns which page of a store, and what is written in it.

    pool = Pool(pages=1000, size=16)
    found, node = pool.find(root, ids)            # pages that begin alike and need not be computed
    page = pool.take()                            # an empty one
    node = pool.tell(page, node, ids[:16])        # it is full: others may find it
    pool.release([*found, page])

All on the host: pages are numbers here, and the same for all layers. Page 0 belongs to nobody: what
must be written and is not wanted goes there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import count

from allformer.errors import GenerationError

Node = Hashable  # what stands in a page and all before it: two pages with one node are alike


class Pool:
    """`pages` pages of `size` tokens. A page that was told stays to be found when its last owner
    has gone, until somebody needs an empty one: then the one longest unused goes first."""

    def __init__(self, pages: int, size: int) -> None:
        self.pages, self.size = pages, size
        self._empty = list(range(pages, 0, -1))
        self._owners = [0] * (pages + 1)
        self._known: dict[tuple[Node, tuple[int, ...]], tuple[int, int]] = {}
        self._told: dict[int, tuple[Node, tuple[int, ...]]] = {}  # by page: how it is found
        self._idle: OrderedDict[int, None] = OrderedDict()  # told, and nobody's
        self._nodes = count()

    @property
    def available(self) -> int:
        """Pages that can be had at once."""
        return len(self._empty) + len(self._idle)

    def take(self) -> int:
        """An empty page, owned once."""
        if self._empty:
            page = self._empty.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            del self._known[self._told.pop(page)]
        else:
            raise GenerationError(
                f"all {self.pages} pages of {self.size} tokens are taken; give more pages"
            )
        self._owners[page] = 1
        return page

    def find(self, root: Node, ids: Sequence[int]) -> tuple[list[int], Node]:
        """The pages that hold the beginning of `ids` behind `root`, each owned once more, and the
        node of the last one."""
        found: list[int] = []
        node: Node = root
        for at in range(0, len(ids) - self.size + 1, self.size):
            known = self._known.get((node, tuple(ids[at : at + self.size])))
            if known is None:
                break
            page, node = known
            found.append(page)
            self._owners[page] += 1
            self._idle.pop(page, None)
        return found, node

    def tell(self, page: int, node: Node, ids: Iterable[int]) -> Node:
        """`ids` stand in this page behind `node`, and it is not written again; gives its node."""
        key = (node, tuple(ids))
        if key in self._known:  # somebody else has computed the same: theirs is found
            return self._known[key][1]
        self._known[key] = page, next(self._nodes)
        self._told[page] = key
        return self._known[key][1]

    def release(self, pages: Sequence[int]) -> None:
        """One owner of each page has gone. Later pages of a row are given away first: they are of
        no use without the earlier ones."""
        for page in reversed(pages):
            self._owners[page] -= 1
            if not self._owners[page]:
                if page in self._told:
                    self._idle[page] = None
                else:
                    self._empty.append(page)
