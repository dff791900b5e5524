package rules

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/rules/document"
)

// TestGoldenHistory: the encoding of a history and the hashes of documents
// never change, because nodes of different releases compare them.
func TestGoldenHistory(t *testing.T) {
	h := NewHistory()
	contract, err := os.ReadFile("document/testdata/contract.yaml") // it uses most of the format
	expect.NoError(t, err)
	var lines []golden.Line
	for i, w := range []Write{
		{By: "n1", Change: document.Change{Body: contract}},
		{By: "n2",
			Change: document.Change{Part: document.RulePart, Name: "login",
				Body: []byte("{key: [ip], limits: [{limit: 4, per: 1m, algorithm: sliding-window-log}]}")}},
		{By: "n1", IfMatch: 2, Change: document.Change{Part: document.ListPart, Name: "deny", Delete: true}},
		{By: "n1", Change: document.Change{Part: document.TierPart, Name: "basic", Body: []byte("{limits: [{limit: 2000, per: 1h}]}")}},
	} {
		w.When = time.UnixMilli(1_800_000_000_000 + int64(i))
		next, err := h.Write(w)
		expect.NoError(t, err)
		h = next
		hash := h.Hash()
		lines = append(lines, golden.Line{Name: fmt.Sprintf("hash-%d", i+1), Bytes: hash[:]})
	}
	b := h.AppendBinary(nil)
	kept := golden.Check(t, "testdata/history.txt", append(lines, golden.Line{Name: "history", Bytes: b})...)
	back, err := ParseHistory(kept[len(kept)-1])
	if err != nil || back.Hash() != h.Hash() {
		t.Fatalf("the decoded history differs: %v", err)
	}
	if again := back.AppendBinary(nil); !bytes.Equal(again, b) {
		t.Error("the decoded history has another encoding")
	}
}
