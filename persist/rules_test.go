package persist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/rlnode/rlnode/rules"
)

func rulesConfig(dir string) RulesConfig {
	cfg := DefaultRulesConfig()
	cfg.Dir, cfg.Logger = dir, quiet
	return cfg
}

func openRules(t testing.TB, dir string) *Rules {
	t.Helper()
	r, err := OpenRules(rulesConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func closeRules(t testing.TB, r *Rules) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustWrite(t testing.TB, r *Rules, c rules.Change) int64 {
	t.Helper()
	n, err := r.Write(t.Context(), c, WriteOptions{By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func parsed(t testing.TB, text string) *rules.Document {
	t.Helper()
	doc, err := rules.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSeedOnce(t *testing.T) {
	dir := t.TempDir()
	r := openRules(t, dir)
	if r.Current() != nil || len(r.Versions()) != 0 {
		t.Fatal("a new store has a version")
	}
	if _, err := r.Version(1); !errors.Is(err, rules.ErrNotFound) {
		t.Errorf("have %v", err)
	}
	ok, err := r.Seed(t.Context(), parsed(t, document(1)), "seed")
	if err != nil || !ok {
		t.Fatalf("have %t, %v", ok, err)
	}
	closeRules(t, r)
	closeRules(t, r)
	r = openRules(t, dir)
	defer closeRules(t, r)
	ok, err = r.Seed(t.Context(), parsed(t, document(2)), "seed")
	if err != nil || ok {
		t.Fatalf("seeded twice: %t, %v", ok, err)
	}
	now := r.Current()
	if now.Version.Number != 1 || now.Set.Version != 1 || says(now.Document) != 1 || now.Version.By != "seed" {
		t.Errorf("have %+v", now.Version)
	}
	text, err := now.Document.YAML()
	if err != nil || string(text) != document(1) {
		t.Errorf("have %q (%v)", text, err)
	}
}

// Every kept version says what it said, in this process and the next, however it is stored.
func TestVersionsReplay(t *testing.T) {
	dir := t.TempDir()
	r := openRules(t, dir)
	const last = 137
	var changes []int64
	cfg := rulesConfig(dir)
	closeRules(t, r)
	cfg.OnChange = func(s *rules.Set, d *rules.Document) {
		changes = append(changes, s.Version)
		if says(d) != int(s.Version) {
			t.Errorf("version %d came into force saying %d", s.Version, says(d))
		}
	}
	r, err := OpenRules(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= last; n++ {
		c := killChange(n)
		if n > 40 && n < 120 {
			// A long run of small changes.
			c = rules.Change{Part: rules.TierPart, Name: "free", Body: fmt.Appendf(nil, "{limits: [{limit: %d, per: 1h}]}", n)}
		}
		if v := mustWrite(t, r, c); v != int64(n) {
			t.Fatalf("version %d, want %d", v, n)
		}
		if n%10 == 0 || n == last {
			checkVersions(t, r, n)
			closeRules(t, r)
			if r, err = OpenRules(cfg); err != nil {
				t.Fatal(err)
			}
			checkVersions(t, r, n)
		}
	}
	defer closeRules(t, r)
	if len(changes) != last {
		t.Errorf("%d versions came into force, want %d", len(changes), last)
	}
	if n := len(r.chain); n > KeptVersions+fullEvery {
		t.Errorf("%d versions are stored", n)
	}
}

func checkVersions(t *testing.T, r *Rules, last int) {
	t.Helper()
	vs := r.Versions()
	if want := min(last, KeptVersions); len(vs) != want {
		t.Fatalf("%d versions, want %d", len(vs), want)
	}
	for i, v := range vs {
		n := last - i
		if int(v.Number) != n || v.When.IsZero() || v.By != "test" || v.Size == 0 {
			t.Fatalf("have %+v, want number %d", v, n)
		}
		if v.What != "tier free" && v.What != "document" {
			t.Fatalf("version %d: what is %q", n, v.What)
		}
		doc, err := r.Version(v.Number)
		if err != nil || says(doc) != n {
			t.Fatalf("version %d says %d (%v)", n, says(doc), err)
		}
	}
	for _, n := range []int64{-1, 0, int64(last + 1), int64(last - KeptVersions)} {
		if _, err := r.Version(n); !errors.Is(err, rules.ErrNotFound) {
			t.Fatalf("version %d: have %v, want ErrNotFound", n, err)
		}
	}
}

// Fifty small changes to a large document do not store it fifty times.
func TestSmallChangesStaySmall(t *testing.T) {
	dir := t.TempDir()
	r := openRules(t, dir)
	defer closeRules(t, r)
	var big strings.Builder
	big.WriteString(document(1))
	big.WriteString("subjects:\n  tenant:\n")
	for i := range 20_000 {
		fmt.Fprintf(&big, "    tenant-%d: {tier: free}\n", i)
	}
	mustWrite(t, r, rules.Change{Part: rules.WholeDocument, Body: []byte(big.String())})
	for n := 2; n <= 50; n++ {
		mustWrite(t, r, rules.Change{Part: rules.TierPart, Name: "free", Body: fmt.Appendf(nil, "{limits: [{limit: %d, per: 1h}]}", n)})
	}
	stored := 0
	for _, l := range r.chain {
		stored += l.stored
	}
	if stored > 6*big.Len() {
		t.Errorf("%d bytes for 50 versions of a document of %d", stored, big.Len())
	}
	doc, err := r.Version(37)
	if err != nil || says(doc) != 37 {
		t.Errorf("version 37 says %d (%v)", says(doc), err)
	}
}

func TestRefusedWrites(t *testing.T) {
	dir := t.TempDir()
	cfg := rulesConfig(dir)
	calls := 0
	cfg.OnChange = func(*rules.Set, *rules.Document) { calls++ }
	r, err := OpenRules(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeRules(t, r)
	mustWrite(t, r, rules.Change{Body: []byte(document(1))})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var invalid rules.Errors
	tests := []struct {
		name   string
		ctx    context.Context
		change rules.Change
		opts   WriteOptions
		want   func(error) bool
	}{
		{"conflict", t.Context(), rules.Change{Body: []byte(document(2))}, WriteOptions{IfMatch: 7}, func(err error) bool { return errors.Is(err, ErrConflict) }},
		{"invalid document", t.Context(), rules.Change{Body: []byte("version: 1\nrulez: []\n")}, WriteOptions{}, func(err error) bool { return errors.As(err, &invalid) }},
		{"invalid piece", t.Context(), rules.Change{Part: rules.TierPart, Name: "free", Body: []byte("{limits: [{limit: 0, per: 1h}]}")}, WriteOptions{}, func(err error) bool { return errors.As(err, &invalid) }},
		{"not found", t.Context(), rules.Change{Part: rules.RulePart, Name: "no", Delete: true}, WriteOptions{}, func(err error) bool { return errors.Is(err, rules.ErrNotFound) }},
		{"ended", ended, rules.Change{Body: []byte(document(2))}, WriteOptions{}, func(err error) bool { return errors.Is(err, context.Canceled) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if n, err := r.Write(tt.ctx, tt.change, tt.opts); !tt.want(err) || n != 0 {
				t.Errorf("have %d, %v", n, err)
			}
			if says(r.Current().Document) != 1 || calls != 1 || len(r.Versions()) != 1 {
				t.Error("something changed")
			}
		})
	}
	if n, err := r.Write(t.Context(), rules.Change{Body: []byte(document(2))}, WriteOptions{IfMatch: 1, By: strings.Repeat("ä", 500)}); n != 2 || err != nil {
		t.Errorf("have %d, %v", n, err)
	}
	if by := r.Versions()[0].By; len(by) != maxBy {
		t.Errorf("by has %d bytes", len(by))
	}
}

func TestDescribe(t *testing.T) {
	tests := map[string]rules.Change{
		"document":            {},
		"rule login":          {Part: rules.RulePart, Name: "login"},
		"delete tier free":    {Part: rules.TierPart, Name: "free", Delete: true},
		"subject tenant acme": {Part: rules.SubjectPart, Attribute: "tenant", Name: "acme"},
		"list deny":           {Part: rules.ListPart, Name: "deny"},
	}
	for want, have := range tests {
		if got := describe(have); got != want {
			t.Errorf("have %q, want %q", got, want)
		}
		l := link{Version: Version{Number: 9}, full: have.Part == rules.WholeDocument}
		e, err := parseEntry(versionKey(9), encodeEntry(l, have, []byte("x")))
		if err != nil || fmt.Sprint(e.change) != fmt.Sprint(have) || e.full != l.full || string(e.payload) != "x" {
			t.Errorf("%s: have %+v, %v", want, e, err)
		}
	}
}

// A write that does not reach the disk is not in force, and the next one takes its number.
func TestRulesDiskFull(t *testing.T) {
	dir := t.TempDir()
	cfg := rulesConfig(dir)
	cfg.MaxSize = 200_000
	r, err := OpenRules(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, r, rules.Change{Body: []byte(document(1))})
	huge := document(2) + strings.Repeat("# "+strings.Repeat("x", 98)+"\n", 5000)
	if n, err := r.Write(t.Context(), rules.Change{Body: []byte(huge)}, WriteOptions{}); !errors.Is(err, berrors.ErrMaxSizeReached) || n != 0 {
		t.Fatalf("have %d, %v, want a full disk", n, err)
	}
	if says(r.Current().Document) != 1 {
		t.Error("a version that is not on disk is in force")
	}
	if n := mustWrite(t, r, killChange(2)); n != 2 {
		t.Errorf("version %d, want 2", n)
	}
	closeRules(t, r)
	r = openRules(t, dir)
	defer closeRules(t, r)
	if says(r.Current().Document) != 2 {
		t.Errorf("have %d", says(r.Current().Document))
	}
}

// A version that a failed write left behind goes with the next write.
func TestLeftoverVersion(t *testing.T) {
	r := openRules(t, t.TempDir())
	defer closeRules(t, r)
	mustWrite(t, r, rules.Change{Body: []byte(document(1))})
	err := r.file.update(func(tx *bolt.Tx) error {
		l := link{Version: Version{Number: 3}, full: true}
		return tx.Bucket(versionsBucket).Put(versionKey(3), encodeEntry(l, rules.Change{}, []byte(document(3))))
	})
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, r, killChange(2))
	err = r.file.view(func(tx *bolt.Tx) error {
		if n := tx.Bucket(versionsBucket).Stats().KeyN; n != 2 {
			t.Errorf("%d versions in the file, want 2", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRulesInUse(t *testing.T) {
	dir := t.TempDir()
	r := openRules(t, dir)
	defer closeRules(t, r)
	_, err := OpenRules(rulesConfig(dir))
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("have %v, want ErrInUse and the directory's name", err)
	}
}

// A damaged rules.db stops the node, or what it gives is what was acknowledged: never less, never set aside.
func TestRulesDamaged(t *testing.T) {
	dir := t.TempDir()
	r := openRules(t, dir)
	for n := 1; n <= 20; n++ {
		mustWrite(t, r, killChange(n))
	}
	closeRules(t, r)
	path := filepath.Join(dir, rulesFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for round := range 500 {
		rnd := rand.New(rand.NewPCG(uint64(round), 2))
		data, what := damage(rnd, bytes.Clone(good))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := OpenRules(rulesConfig(dir))
		if err != nil {
			refused++
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "backup") || !strings.Contains(err.Error(), path) {
				t.Errorf("round %d, %s: %v", round, what, err)
			}
			continue
		}
		if now := r.Current(); now == nil || says(now.Document) != int(now.Version.Number) || now.Version.Number != 20 {
			t.Errorf("round %d, %s: opened with %+v", round, what, now)
		}
		closeRules(t, r)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
	t.Logf("%d of 500 were refused", refused)
}

func TestRulesBreakWhileOpen(t *testing.T) {
	dir := t.TempDir()
	r := openRules(t, dir)
	mustWrite(t, r, killChange(1))
	if err := os.Truncate(r.path, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Write(t.Context(), killChange(2), WriteOptions{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("have %v, want ErrCorrupt", err)
		}
	}
	if says(r.Current().Document) != 1 {
		t.Error("the version in force is gone")
	}
	if _, err := r.Version(1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("have %v", err)
	}
	closeRules(t, r)
}

func TestConcurrentWrites(t *testing.T) {
	r := openRules(t, t.TempDir())
	defer closeRules(t, r)
	mustWrite(t, r, killChange(1))
	var wg sync.WaitGroup
	won := make([]int, 8)
	for w := range won {
		wg.Go(func() {
			for range 10 {
				have := r.Current().Version.Number
				n, err := r.Write(t.Context(), killChange(int(have)+1), WriteOptions{IfMatch: have})
				switch {
				case err == nil && n == have+1:
					won[w]++
				case !errors.Is(err, ErrConflict):
					t.Errorf("have %d, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	total := 1
	for _, n := range won {
		total += n
	}
	if now := r.Current(); int(now.Version.Number) != total || says(now.Document) != total {
		t.Errorf("version %d says %d after %d writes", now.Version.Number, says(now.Document), total)
	}
}

func TestRulesClosed(t *testing.T) {
	r := openRules(t, t.TempDir())
	closeRules(t, r)
	if _, err := r.Write(t.Context(), killChange(1), WriteOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("have %v", err)
	}
	if _, err := r.Version(1); !errors.Is(err, ErrClosed) {
		t.Errorf("have %v", err)
	}
	if _, err := r.Seed(t.Context(), nil, ""); !errors.Is(err, ErrClosed) {
		t.Errorf("have %v", err)
	}
}

func TestRulesConfig(t *testing.T) {
	for want, harm := range map[string]func(*RulesConfig){
		"Dir":     func(c *RulesConfig) { c.Dir = "" },
		"Logger":  func(c *RulesConfig) { c.Logger = nil },
		"MaxSize": func(c *RulesConfig) { c.MaxSize = -1 },
	} {
		cfg := rulesConfig(t.TempDir())
		harm(&cfg)
		if _, err := OpenRules(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want an error about %s", err, want)
		}
	}
}
