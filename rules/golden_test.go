package rules

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

var updateGolden = flag.Bool("update", false, "write the golden files anew")

// TestGoldenHistory: a history is written and read as ever, and documents have the hashes that they had: nodes of different
// releases compare these.
func TestGoldenHistory(t *testing.T) {
	h := NewHistory()
	document, err := os.ReadFile("testdata/contract.yaml") // it has something of everything
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i, w := range []Write{
		{By: "n1", Change: Change{Body: document}},
		{By: "n2", Change: Change{Part: RulePart, Name: "login", Body: []byte("{key: [ip], limits: [{limit: 4, per: 1m, algorithm: sliding-window-log}]}")}},
		{By: "n1", IfMatch: 2, Change: Change{Part: ListPart, Name: "deny", Delete: true}},
		{By: "n1", Change: Change{Part: SubjectPart, Attribute: "tenant", Name: "acme", Body: []byte("{tier: basic}")}},
	} {
		w.When = time.UnixMilli(1_800_000_000_000 + int64(i))
		next, err := h.Write(w)
		if err != nil {
			t.Fatal(err)
		}
		h = next
		fmt.Fprintf(&text, "hash-%d %x\n", i+1, h.Hash())
	}
	b, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&text, "history %x\n", b)
	const path = "testdata/history.txt"
	if *updateGolden {
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil || string(kept) != text.String() {
		t.Fatalf("what is written differs from %s: that takes a new feature level; to write it anew: go test ./rules -run Golden -args -update (%v)", path, err)
	}
	_, last, _ := strings.Cut(strings.TrimSpace(string(kept)), "history ")
	if b, err = hex.DecodeString(last); err != nil {
		t.Fatal(err)
	}
	back, err := ParseHistory(b)
	if err != nil || back.Hash() != h.Hash() {
		t.Fatalf("the history is read as another one: %v", err)
	}
	if again, _ := back.AppendBinary(nil); !bytes.Equal(again, b) {
		t.Error("the history is written otherwise after it was read")
	}
}
