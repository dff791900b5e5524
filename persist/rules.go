package persist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/rules"
)

// KeptVersions is how many versions of the rules can be read back.
const KeptVersions = 50

const (
	rulesFile = "rules.db"

	maxBy   = 256 // bytes of Version.By and Version.What
	maxWhat = 256

	// fullEvery is after how many single changes a whole document is stored again, which bounds replaying.
	fullEvery = 16
)

// ErrConflict: the version in force is not the one that a write was made for.
var ErrConflict = errors.New("rules have changed meanwhile")

// RulesConfig says where rules are kept.
type RulesConfig struct {
	// Dir is the data directory. It has to exist.
	Dir string
	// OnChange, if set, is called with each version that comes into force after OpenRules, in order, before the
	// write is acknowledged. It must not call Write or Seed.
	OnChange func(*rules.Set, *rules.Document)
	// Logger gets what an operator should know. Default slog.Default().
	Logger *slog.Logger
	// MaxSize bounds the file, in bytes; writes fail beyond it. 0 is no bound.
	MaxSize int
}

// DefaultRulesConfig is a RulesConfig with all but Dir set.
func DefaultRulesConfig() RulesConfig { return RulesConfig{Logger: slog.Default()} }

// Validate names the first field that is wrong.
func (c *RulesConfig) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("persist: Dir is empty")
	case c.Logger == nil:
		return errors.New("persist: Logger is nil")
	case c.MaxSize < 0:
		return fmt.Errorf("persist: MaxSize is %d, below 0", c.MaxSize)
	}
	return nil
}

// Version is one version of the rules.
type Version struct {
	Number int64 // from 1
	When   time.Time
	By     string // who wrote it, at most 256 bytes
	What   string // what was changed, as "rule login", at most 256 bytes
	Size   int    // of the change, in bytes
}

// Current is the version in force.
type Current struct {
	Set      *rules.Set
	Document *rules.Document
	Version  Version
}

// Rules keeps the rules and their last versions in rules.db, and holds the data directory's lock while it is
// open. All methods may be called concurrently.
type Rules struct {
	cfg     RulesConfig
	path    string
	current atomic.Pointer[Current] // nil while there is no version

	// mu guards the file and what follows; it is held while a write goes to disk.
	mu     sync.Mutex
	file   *file
	chain  []link // the kept versions, and those before that the first of them is replayed from
	broken error  // the file failed while it was open: no more writes
	closed bool
}

// OpenRules opens rules.db in the data directory, or makes it. The error wraps ErrInUse if another process has
// the directory, and ErrCorrupt if the file is damaged.
func OpenRules(cfg RulesConfig) (*Rules, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Rules{cfg: cfg, path: filepath.Join(cfg.Dir, rulesFile)}
	if err := r.create(); err != nil {
		return nil, fmt.Errorf("create %s: %w", r.path, err)
	}
	var err error
	r.file, err = openFile(r.path, bolt.Options{FreelistType: bolt.FreelistMapType, MaxSize: cfg.MaxSize}, bothMetas)
	switch {
	case errors.Is(err, ErrInUse):
		return nil, fmt.Errorf("%w: %s", ErrInUse, cfg.Dir)
	case damaged(err):
		return nil, r.corrupt(err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", r.path, err)
	}
	r.sweepTemporary()
	if err := r.load(); err != nil {
		if errors.Is(err, errBroken) {
			r.file.abandon()
		} else {
			err = errors.Join(err, r.file.close())
		}
		return nil, err
	}
	return r, nil
}

// create makes an empty rules.db if there is none. It appears whole or not at all, so that an empty or cut file
// is always a damaged one.
func (r *Rules) create() error {
	if _, err := os.Stat(r.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return createOnce(r.path, func(temp string) error {
		db, err := bolt.Open(temp, 0o600, &bolt.Options{Timeout: lockPatience})
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket(versionsBucket)
			return err
		})
		return errors.Join(err, db.Close())
	})
}

// sweepTemporary removes what a crash in create left behind. The lock is held: nobody is creating now.
func (r *Rules) sweepTemporary() {
	left, err := filepath.Glob(globEscape(r.path) + ".new-*")
	if err != nil {
		return
	}
	for _, name := range left {
		_ = os.Remove(name)
	}
}

func (r *Rules) corrupt(cause error) error {
	return fmt.Errorf("%w: %s: %w; restore it from a backup, or move it away to begin with new rules",
		ErrCorrupt, r.path, cause)
}

// Current returns the version in force, or nil if there is none yet.
func (r *Rules) Current() *Current { return r.current.Load() }

// WriteOptions are the conditions of a write.
type WriteOptions struct {
	// IfMatch is the version that the change was made for; 0 for any.
	IfMatch int64
	// By says who writes; what is longer than 256 bytes is cut.
	By string
}

// Write makes a change the next version and returns its number. It is on disk before it comes into force. The
// error wraps ErrConflict, rules.ErrNotFound, rules.Errors for an invalid change, or says what is wrong with the
// disk; nothing has changed then. After a disk error it is not known which version a restart would find: this one
// or the last; the next write settles it.
func (r *Rules) Write(ctx context.Context, change rules.Change, opts WriteOptions) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(ctx); err != nil {
		return 0, err
	}
	now := r.current.Load()
	have := int64(0)
	if now != nil {
		have = now.Version.Number
	}
	if opts.IfMatch != 0 && opts.IfMatch != have {
		return 0, fmt.Errorf("%w: version %d is in force, not %d", ErrConflict, have, opts.IfMatch)
	}
	var base *rules.Document
	var err error
	if now != nil {
		base = now.Document
	} else if base, err = rules.Parse([]byte("version: 1\n")); err != nil {
		return 0, fmt.Errorf("begin with empty rules: %w", err)
	}
	doc, err := base.Apply(change)
	if err != nil {
		return 0, err
	}
	return r.commit(doc, change, opts.By)
}

// Seed makes doc version 1, if there is no version yet, and reports whether it did.
func (r *Rules) Seed(ctx context.Context, doc *rules.Document, by string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(ctx); err != nil {
		return false, err
	}
	if r.current.Load() != nil {
		return false, nil
	}
	text, err := doc.YAML()
	if err != nil {
		return false, fmt.Errorf("write seed document: %w", err)
	}
	_, err = r.commit(doc, rules.Change{Part: rules.WholeDocument, Body: text}, by)
	return err == nil, err
}

func (r *Rules) usable(ctx context.Context) error {
	switch {
	case r.closed:
		return ErrClosed
	case r.broken != nil:
		return r.broken
	}
	return ctx.Err()
}

// commit writes doc, to which change led, as the next version, and puts it in force.
func (r *Rules) commit(doc *rules.Document, change rules.Change, by string) (int64, error) {
	v := Version{
		Number: 1, When: time.Now().UTC().Truncate(time.Millisecond),
		By: cut(by, maxBy), What: cut(describe(change), maxWhat), Size: len(change.Body),
	}
	if n := len(r.chain); n > 0 {
		v.Number = r.chain[n-1].Number + 1
	}
	set, err := rules.Compile(doc, v.Number)
	if err != nil {
		return 0, err
	}
	l, payload := r.plan(v, doc, change)
	chain := trim(append(r.chain[:len(r.chain):len(r.chain)], l))
	err = r.put(chain, encodeEntry(l, change, payload))
	if damaged(err) {
		r.broken = r.corrupt(err)
		r.file.abandon()
		return 0, r.broken
	}
	if err != nil {
		return 0, fmt.Errorf("write rules to disk: %w", err)
	}
	r.chain = chain
	r.current.Store(&Current{Set: set, Document: doc, Version: v})
	if r.cfg.OnChange != nil {
		r.cfg.OnChange(set, doc)
	}
	return v.Number, nil
}

// Versions returns the kept versions, newest first: at most the last 50.
func (r *Rules) Versions() []Version {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.chain), KeptVersions)
	out := make([]Version, 0, n)
	for i := range n {
		out = append(out, r.chain[len(r.chain)-1-i].Version)
	}
	return out
}

// Version returns the document of a kept version, or an error that wraps rules.ErrNotFound.
func (r *Rules) Version(n int64) (*rules.Document, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, ErrClosed
	case r.broken != nil:
		return nil, r.broken
	}
	last := int64(0)
	if len(r.chain) > 0 {
		last = r.chain[len(r.chain)-1].Number
	}
	if n < 1 || n > last || n <= last-KeptVersions {
		return nil, fmt.Errorf("%w: version %d of the rules", rules.ErrNotFound, n)
	}
	if now := r.current.Load(); n == now.Version.Number {
		return now.Document, nil
	}
	return r.replay(n)
}

// Close closes the file and lets go of the data directory. Further calls do nothing.
func (r *Rules) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.broken != nil {
		r.closed = true
		return nil
	}
	r.closed = true
	if err := r.file.close(); err != nil {
		return fmt.Errorf("close rules: %w", err)
	}
	return nil
}

// describe names what a change changes: "document", "rule login", "delete tier free", "subject tenant acme".
func describe(c rules.Change) string {
	words := []string{partName(c.Part)}
	if c.Delete {
		words = append([]string{"delete"}, words...)
	}
	for _, w := range []string{c.Attribute, c.Name} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

// cut shortens s to at most n bytes of valid UTF-8.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
