package agreement

import (
	"errors"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// A prepared entry has the same result as an unprepared one. The preparation is
// used only for the entry and the history that it was made for.
func TestApplyPrepared(t *testing.T) {
	write := func(id byte, body string) WriteRules {
		return WriteRules{
			Request: RequestID{id}, By: "a test", When: time.UnixMilli(1000),
			Change: document.Change{Part: document.WholeDocument, Body: []byte("version: 1\n" + body)},
		}
	}
	good := write(1, "rules:\n  - {name: a, key: [k], limits: [{limit: 1, per: 1m}]}\n")
	bad := write(2, "rulez: []\n")
	index, plain, prepared := uint64(0), New(), New()
	for _, e := range []WriteRules{good, bad, good, write(3, "")} {
		entry, err := ThisBuild.Encode(e)
		expect.NoError(t, err)
		index++
		p := prepared.prepareWrite(e)
		var want, have Result
		plain, want = plain.Apply(index, entry)
		prepared, have = ThisBuild.Apply(prepared, index, entry, p)
		if have.Version != want.Version || (have.Err == nil) != (want.Err == nil) {
			t.Errorf("entry %d: have %+v, want %+v", index, have, want)
		}
		a, _ := plain.AppendBinary(nil)
		b, _ := prepared.AppendBinary(nil)
		if string(a) != string(b) {
			t.Errorf("entry %d: the states differ", index)
		}
	}
	stale := New().prepareWrite(write(9, ""))
	entry, _ := ThisBuild.Encode(write(4, "rulez: []\n"))
	if _, r := ThisBuild.Apply(prepared, index+1, entry, stale); !errors.As(r.Err, new(document.Errors)) {
		t.Errorf("another entry's preparation was used: %+v", r)
	}
}
