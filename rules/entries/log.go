package entries

import "slices"

// Record is a change that was made. Before is the entry before the change, and
// After the entry after it; nil means none.
type Record struct {
	Version int64  `json:"version"`
	When    int64  `json:"when"` // Unix ms
	By      string `json:"by,omitempty"`
	Before  *Entry `json:"before,omitempty"`
	After   *Entry `json:"after,omitempty"`
	Ended   bool   `json:"ended,omitempty"` // its end had come

	digest Digest // of all changes up to this one
}

// size returns about how many bytes r keeps in memory beside what the state
// has. The state has r.After, at least at first.
func (r *Record) size() int {
	n := entryBytes
	if r.Before != nil {
		n += r.Before.size()
	}
	return n
}

// logChunk is the number of records that are copied at a time.
const logChunk = 128

// changeLog is an immutable list of the last records, oldest first. All chunks
// but the last have logChunk records. Old records are dropped a chunk at a
// time, so the list may have some more than MaxChanges.
type changeLog struct {
	chunks [][]Record
	n      int
	bytes  int
}

// with returns l with one more record.
func (l changeLog) with(r Record) changeLog {
	l.n++
	l.bytes += r.size()

	last := len(l.chunks) - 1
	if last >= 0 && len(l.chunks[last]) < logChunk {
		// Other states share the list and its last chunk.
		chunks := slices.Clone(l.chunks)
		chunks[last] = append(slices.Clip(chunks[last]), r)
		l.chunks = chunks
	} else {
		l.chunks = append(slices.Clip(l.chunks), []Record{r})
	}

	for len(l.chunks) > 1 && (l.n-len(l.chunks[0]) >= MaxChanges || l.bytes > MaxLogBytes) {
		for i := range l.chunks[0] {
			l.bytes -= l.chunks[0][i].size()
		}
		l.n -= len(l.chunks[0])
		l.chunks = l.chunks[1:]
	}

	return l
}

// backward calls yield for each record, newest first.
func (l changeLog) backward(yield func(*Record) bool) {
	for _, chunk := range slices.Backward(l.chunks) {
		for i := len(chunk) - 1; i >= 0; i-- {
			if !yield(&chunk[i]) {
				return
			}
		}
	}
}

// Log returns the last n records up to a version, newest first; 0 stands for the newest version.
func (s *State) Log(upTo int64, n int) []*Record {
	var list []*Record
	left := MaxChanges
	s.log.backward(func(r *Record) bool {
		left--
		if upTo == 0 || r.Version <= upTo {
			list = append(list, r)
		}
		return len(list) < n && left > 0
	})
	return list
}

// RecordAt returns the record of a version, or nil if it is not kept.
func (s *State) RecordAt(version int64) *Record {
	list := s.Log(version, 1)
	if len(list) == 0 || list[0].Version != version {
		return nil
	}
	return list[0]
}

// Since returns the records after a version, oldest first: as many as fit in
// most bytes, but at least one. ok is false if s had another digest at that
// version, and so another history, or if the log no longer has all of these
// records.
func (s *State) Since(version int64, digest Digest, most int) (list []*Record, ok bool) {
	if version == s.version {
		return nil, digest == s.digest
	}
	if version > s.version {
		return nil, false
	}

	found := version == 0 && digest == Digest{}
	s.log.backward(func(r *Record) bool {
		if r.Version <= version {
			found = r.Version == version && r.digest == digest
			return false
		}
		list = append(list, r)
		return true
	})
	slices.Reverse(list)

	if !found || len(list) == 0 || list[0].Version != version+1 {
		return nil, false
	}

	size := 0
	for i, r := range list {
		size += 2 * r.size()
		if r.After != nil {
			size += 2 * r.After.size()
		}
		if size > most && i > 0 {
			return list[:i], true
		}
	}

	return list, true
}
