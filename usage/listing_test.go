package usage

import (
	"log/slog"
	"path/filepath"
	"testing"
)

// Rows with the same names, as there are in the month in which subjects came to be hashed otherwise, are all read, however
// small the pages.
func TestRowsWithTheSameNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "month")
	l, _, err := openLedger(path, "", header{month: 12}, 100, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for i := range uint64(30) {
		row := Row{Rule: "r", Key: []string{string(rune('a' + i%10))}, Unit: "requests", Cost: int64(1 + i), Checks: 1}
		want += row.Cost
		if have := l.enter(i, i, &row, false); have != entered {
			t.Fatalf("row %d: have outcome %d", i, have)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	list, err := openListing(path)
	if err != nil {
		t.Fatal(err)
	}
	defer list.close()
	for _, limit := range []int{1, 30, 1 << 20} {
		cost, rows, after := int64(0), 0, (*Row)(nil)
		for more := true; more; {
			var page []byte
			page, more = list.appendPage(nil, "", after, limit)
			read, err := readPage(page)
			if err != nil {
				t.Fatal(err)
			}
			for i := range read {
				cost += read[i].Cost
				after = &read[i]
			}
			rows += len(read)
		}
		if cost != want || rows != 30 {
			t.Errorf("pages of %d bytes: have %d in %d rows, want %d in 30", limit, cost, rows, want)
		}
	}
}
