package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt's file format, as far as the walk needs it. Numbers are in the
// machine's byte order.
const (
	pageHeader    = 16 // id u64, flags u16, count u16, overflow u32
	branchElement = 16 // pos u32, ksize u32, page u64
	leafElement   = 16 // flags u32, pos u32, ksize u32, vsize u32
	bucketHeader  = 16 // root u64, sequence u64

	branchFlag   = 0x01
	leafFlag     = 0x02
	freelistFlag = 0x10
	bucketFlag   = 0x01 // in a leaf element

	metaMagic   = 0xED0CDAED
	metaVersion = 2
	metaSum     = 56 // offset of the checksum in the meta
	noFreelist  = 1<<64 - 1

	minPage  = 1 << 10
	maxPage  = 1 << 24
	maxDepth = 64 // bounds the pages on the path to a leaf, including nested buckets
)

// errPages: the pages of a file do not form a database.
var errPages = errors.New("damaged pages")

func pageError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errPages, fmt.Sprintf(format, args...))
}

// verifyPages walks all pages in use in a bbolt file of size bytes. If a file
// passes, bbolt can open and iterate it without panic, fault or endless loop.
// verifyPages reads plain bytes, without a map, and trusts none of them. It
// does not inspect values. It reads each page once, so size bounds time and
// memory.
func verifyPages(f io.ReaderAt, size int64, need metaRequirement) error {
	m, err := readMeta(f, size)
	if err != nil {
		return err
	}

	if need == bothMetas {
		if err := m.verifyBoth(f); err != nil {
			return err
		}
	}

	// A new database has four pages: two metas, a free list and a root.
	if m.pages < 4 || m.pages > uint64(size)/uint64(m.pageSize) {
		return pageError("%d pages of %d bytes in a file of %d", m.pages, m.pageSize, size)
	}

	w := &walker{file: f, meta: m, reached: make([]uint64, m.pages/64+1)}
	w.reached[0] = 3 // the two metas
	if err := w.walkTree(m.root, 0, nil, nil); err != nil {
		return err
	}

	if m.freelist == noFreelist {
		return nil
	}
	return w.checkFreelist()
}

// metaRequirement says how many of the two meta pages must be intact. If the
// newer one is damaged, bbolt silently falls back to the previous transaction.
// Counters can do without the last transaction, but raft.db would lose an
// acknowledged version of the rules. A power failure damages neither: a meta
// fits in one sector, so it is written whole or not at all.
type metaRequirement uint8

const (
	anyMeta metaRequirement = iota
	bothMetas
)

// verifyBoth checks that the metas belong to the last two transactions, each in its place.
func (m meta) verifyBoth(f io.ReaderAt) error {
	first, ok0 := readMetaAt(f, 0)
	second, ok1 := readMetaAt(f, int64(m.pageSize))
	if !ok0 || !ok1 || first.page != 0 || second.page != 1 || first.tx%2 != 0 || second.tx%2 != 1 ||
		first.pageSize != second.pageSize || max(first.tx, second.tx)-min(first.tx, second.tx) != 1 {
		return pageError("one of the two meta pages")
	}
	return nil
}

// meta is the part of a meta page that the walk needs.
type meta struct {
	page           uint64 // its own page number, as stored
	pageSize       int
	root, freelist uint64
	pages, tx      uint64
}

// readMeta returns the meta that bbolt will pick: the newer intact one.
func readMeta(f io.ReaderAt, size int64) (meta, error) {
	first, ok := readMetaAt(f, 0)
	if ok {
		if err := first.checkPageSize(first.pageSize); err != nil {
			return first, err
		}

		second, ok := readMetaAt(f, int64(first.pageSize))
		if !ok || second.tx <= first.tx {
			return first, nil
		}
		return second, second.checkPageSize(first.pageSize)
	}

	// The page size is unknown. bbolt tries the same sizes.
	for at := int64(minPage); at <= maxPage && at < size-minPage; at *= 2 {
		if second, ok := readMetaAt(f, at); ok {
			return second, second.checkPageSize(int(at))
		}
	}
	return meta{}, pageError("no intact meta page in %d bytes", size)
}

func readMetaAt(f io.ReaderAt, at int64) (meta, bool) {
	var page [pageHeader + metaSum + 8]byte
	if _, err := f.ReadAt(page[:], at); err != nil {
		return meta{}, false
	}

	e := binary.NativeEndian
	b := page[pageHeader:]
	sum := fnv.New64a()
	sum.Write(b[:metaSum])

	m := meta{
		pageSize: int(e.Uint32(b[8:])), root: e.Uint64(b[16:]), freelist: e.Uint64(b[32:]),
		pages: e.Uint64(b[40:]), tx: e.Uint64(b[48:]), page: e.Uint64(page[:]),
	}
	return m, e.Uint32(b) == metaMagic && e.Uint32(b[4:]) == metaVersion && e.Uint64(b[metaSum:]) == sum.Sum64()
}

// checkPageSize checks that the meta's page size is valid and equals want.
func (m meta) checkPageSize(want int) error {
	if n := m.pageSize; n != want || n < minPage || n > maxPage || n&(n-1) != 0 {
		return pageError("page size is %d", n)
	}
	return nil
}

// walker walks the pages of a file and records which ones it has reached.
type walker struct {
	file    io.ReaderAt
	meta    meta
	reached []uint64         // one bit for each page reached
	bufs    [maxDepth][]byte // one buffer for each depth of the walk
}

// page is one page with its overflow, or the inline page of a small bucket.
type page struct {
	id    uint64
	flags uint16
	count int
	data  []byte
}

// walkTree walks the pages below id. Their keys must lie in [low, high); nil means no bound.
func (w *walker) walkTree(id uint64, depth int, low, high []byte) error {
	if depth >= maxDepth {
		return pageError("page %d is %d levels deep", id, depth)
	}

	p, err := w.readPage(id, depth)
	if err != nil {
		return err
	}

	switch p.flags {
	case branchFlag:
		return w.walkBranch(p, depth, low, high)
	case leafFlag:
		if p.count == 0 && id != w.meta.root {
			// bbolt stores an empty bucket in its parent's page and removes other empty pages.
			return pageError("leaf page %d is empty", id)
		}
		return w.walkLeaf(p, depth, low, high)
	}
	return pageError("page %d has flags %#x", id, p.flags)
}

// readPage reads page id and marks it and its overflow as reached.
func (w *walker) readPage(id uint64, depth int) (page, error) {
	if id >= w.meta.pages {
		return page{}, pageError("page %d of %d", id, w.meta.pages)
	}

	var head [pageHeader]byte
	at := int64(id) * int64(w.meta.pageSize)
	if _, err := w.file.ReadAt(head[:], at); err != nil {
		return page{}, fmt.Errorf("read page %d: %w", id, err)
	}

	e := binary.NativeEndian
	p := page{id: id, flags: e.Uint16(head[8:]), count: int(e.Uint16(head[10:]))}
	length := uint64(e.Uint32(head[12:])) + 1

	stored := e.Uint64(head[:])
	if stored != id {
		return p, pageError("page %d has the number %d", id, stored)
	}
	if length > w.meta.pages-id {
		return p, pageError("page %d is %d pages long", id, length)
	}

	// A page that is reached twice closes a loop, or belongs to two trees.
	for i := id; i < id+length; i++ {
		if w.reached[i/64]&(1<<(i%64)) != 0 {
			return p, pageError("page %d is reached twice", i)
		}
		w.reached[i/64] |= 1 << (i % 64)
	}

	bytes := int(length) * w.meta.pageSize
	if cap(w.bufs[depth]) < bytes {
		w.bufs[depth] = make([]byte, bytes)
	}
	p.data = w.bufs[depth][:bytes]
	if _, err := w.file.ReadAt(p.data, at); err != nil {
		return p, fmt.Errorf("read page %d: %w", id, err)
	}
	return p, nil
}

func (w *walker) walkBranch(p page, depth int, low, high []byte) error {
	if p.count == 0 {
		return pageError("branch page %d is empty", p.id)
	}
	for i := range p.count {
		key, err := p.branchKey(i)
		if err != nil {
			return err
		}

		next := high
		if i+1 < p.count {
			next, err = p.branchKey(i + 1)
			if err != nil {
				return err
			}
		}

		if err := checkOrder(p.id, key, low, next); err != nil {
			return err
		}

		child := binary.NativeEndian.Uint64(p.data[pageHeader+i*branchElement+8:])
		if err := w.walkTree(child, depth+1, key, next); err != nil {
			return err
		}
		low = next
	}
	return nil
}

func (p page) branchKey(i int) ([]byte, error) {
	at := pageHeader + i*branchElement
	if at+branchElement > len(p.data) {
		return nil, pageError("branch page %d has %d elements", p.id, p.count)
	}

	e := binary.NativeEndian
	pos := e.Uint32(p.data[at:])
	if i == 0 && !p.isPacked(branchElement, uint64(at)+uint64(pos)) {
		return nil, pageError("branch page %d does not have %d elements", p.id, p.count)
	}
	key, _, err := p.element(at, branchElement, pos, e.Uint32(p.data[at+4:]), 0)
	return key, err
}

// isPacked reports whether the first element's data, at offset begin, directly
// follows the last element, as in every page that bbolt writes. Without this
// check, a count that is too low would hide the last elements.
func (p page) isPacked(elementSize int, begin uint64) bool {
	return begin == uint64(pageHeader+p.count*elementSize)
}

// element returns the key and value of the element at offset at. Its data
// begins pos bytes after that offset.
func (p page) element(at, elementSize int, pos, ksize, vsize uint32) (key, value []byte, err error) {
	begin := uint64(at) + uint64(pos)
	mid := begin + uint64(ksize)
	end := mid + uint64(vsize)
	if begin < uint64(pageHeader+p.count*elementSize) || end > uint64(len(p.data)) {
		return nil, nil, pageError("an element of page %d lies at bytes %d to %d of %d", p.id, begin, end, len(p.data))
	}
	if ksize == 0 {
		return nil, nil, pageError("page %d has an empty key", p.id)
	}
	return p.data[begin:mid], p.data[mid:end], nil
}

// checkOrder checks that low <= key < high; nil means no bound.
func checkOrder(id uint64, key, low, high []byte) error {
	if low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 {
		return pageError("keys of page %d are out of order", id)
	}
	return nil
}

func (w *walker) walkLeaf(p page, depth int, low, high []byte) error {
	if pageHeader+p.count*leafElement > len(p.data) {
		return pageError("leaf page %d has %d elements", p.id, p.count)
	}

	e := binary.NativeEndian
	if p.count > 0 && !p.isPacked(leafElement, pageHeader+uint64(e.Uint32(p.data[pageHeader+4:]))) {
		return pageError("leaf page %d does not have %d elements", p.id, p.count)
	}

	var last []byte
	for i := range p.count {
		at := pageHeader + i*leafElement
		el := p.data[at : at+leafElement]
		key, value, err := p.element(at, leafElement, e.Uint32(el[4:]), e.Uint32(el[8:]), e.Uint32(el[12:]))
		if err != nil {
			return err
		}

		if err := checkOrder(p.id, key, low, high); err != nil {
			return err
		}
		if last != nil && bytes.Compare(key, last) <= 0 {
			return pageError("keys of page %d are out of order", p.id)
		}
		last = key

		flags := e.Uint32(el)
		switch flags {
		case 0: // a value
		case bucketFlag:
			if err := w.walkBucket(p, value, depth); err != nil {
				return err
			}
		default:
			return pageError("an element of page %d has flags %#x", p.id, flags)
		}
	}
	return nil
}

// walkBucket walks a nested bucket: either a tree of its own, or a single leaf
// stored inline in the value.
func (w *walker) walkBucket(p page, value []byte, depth int) error {
	if len(value) < bucketHeader {
		return pageError("a bucket in page %d has %d bytes", p.id, len(value))
	}

	e := binary.NativeEndian
	root := e.Uint64(value)
	if root != 0 {
		return w.walkTree(root, depth+1, nil, nil)
	}

	data := value[bucketHeader:]
	if len(data) < pageHeader {
		return pageError("a small bucket in page %d has %d bytes", p.id, len(value))
	}

	inline := page{id: p.id, flags: e.Uint16(data[8:]), count: int(e.Uint16(data[10:])), data: data}
	if inline.flags != leafFlag || depth+1 >= maxDepth {
		return pageError("a small bucket in page %d has flags %#x", p.id, inline.flags)
	}
	return w.walkLeaf(inline, depth+1, nil, nil)
}

// checkFreelist checks that the free list is in order and inside the file, and
// that none of its pages are in use.
func (w *walker) checkFreelist() error {
	p, err := w.readPage(w.meta.freelist, 0)
	if err != nil {
		return err
	}
	if p.flags != freelistFlag {
		return pageError("free list page %d has flags %#x", p.id, p.flags)
	}

	e := binary.NativeEndian
	count := uint64(p.count)
	ids := p.data[pageHeader:]

	// The header's count has 16 bits. If there are more pages, it is 0xFFFF, and
	// the first number in the page is the count.
	if count == 0xFFFF {
		count = e.Uint64(ids)
		ids = ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return pageError("free list of %d pages on %d bytes", count, len(ids))
	}

	// The metas, 0 and 1, are never free.
	last := uint64(1)
	for i := range count {
		id := e.Uint64(ids[i*8:])
		if id <= last || id >= w.meta.pages || w.reached[id/64]&(1<<(id%64)) != 0 {
			return pageError("free list has page %d", id)
		}
		last = id
	}
	return nil
}
