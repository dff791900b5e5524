package api

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rlnode/rlnode/internal/reload"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Scope is a set of permissions: what a token may be used for.
type Scope uint8

// The scopes of tokens.
const (
	ScopeCheck   Scope = 1 << iota // ask for decisions
	ScopeAdjust                    // change usage, and report the loads that adaptive limits follow
	ScopeRead                      // read the admin plane
	ScopeAdmin                     // everything
	ScopeEntries                   // deny and block single values for a time, and take that back

	// Anyone means that no token is required. It is not the zero value, so a route
	// without a scope stays closed.
	Anyone Scope = 1 << 7
)

// scopeNames are the scopes as users write them.
var scopeNames = [...]struct {
	name  string
	scope Scope
}{{"check", ScopeCheck}, {"adjust", ScopeAdjust}, {"read", ScopeRead}, {"entries", ScopeEntries}, {"admin", ScopeAdmin}}

// ParseScopes returns the set of the named scopes. The error names an unknown or repeated one.
func ParseScopes(names []string) (all Scope, err error) {
next:
	for _, name := range names {
		for _, s := range scopeNames {
			if s.name != name {
				continue
			}
			if all&s.scope != 0 {
				return 0, fmt.Errorf("%s is given twice", name)
			}
			all |= s.scope
			continue next
		}

		return 0,
			fmt.Errorf("there is no scope %q; the scopes are check, adjust, read, entries and admin",
				Excerpt(name))
	}

	if all == 0 {
		return 0, fmt.Errorf("at least one scope is needed: check, adjust, read, entries or admin")
	}

	return all, nil
}

// Names returns the names of the scopes in s.
func (s Scope) Names() (list []string) {
	for _, n := range scopeNames {
		if s&n.scope != 0 {
			list = append(list, n.name)
		}
	}
	return list
}

// Allows reports whether s contains ScopeAdmin or at least one of the scopes in need.
func (s Scope) Allows(need Scope) bool { return s&(need|ScopeAdmin) != 0 }

const (
	maxToken     = 4096 // bytes of a token; a longer one is rejected without hashing it
	maxTokenName = 64   // bytes
	maxTokens    = 10_000
)

// The names of the tokens from the settings of the same names. A tokens file must not use them.
const (
	apiTokenName   = "api-token"
	adminTokenName = "admin-token"
)

// Token describes a token. It holds a hash in place of the token itself.
type Token struct {
	Name       string
	Scopes     Scope
	Namespaces *rules.Namespaces // the only ones that its holder may ask about; nil: no restriction
	hash       [sha256.Size]byte
}

// NamespaceError returns an error if t is confined to namespaces and q asks
// about anything else. A nil t means that no token is required, and permits
// everything.
func (t *Token) NamespaceError(q *limiter.Query) *Error {
	if t == nil || t.Namespaces == nil {
		return nil
	}

	if len(q.Subjects) == 0 {
		return Errorf(Forbidden,
			"%s may only ask about subjects that bring their limits, in the namespaces %s", t.Name,
			t.Namespaces)
	}

	for i := range q.Subjects {
		name := q.Subjects[i].Namespace
		if !t.Namespaces.Has(name) {
			return Errorf(Forbidden, "%s may only ask about the namespaces %s, and not about %q",
				t.Name, t.Namespaces, Excerpt(cmp.Or(name, rules.InlineName)))
		}
	}

	return nil
}

// HolderName returns the name of a slot's holder if the caller gives none: the
// name of its token, or its address. t and remote may be nil.
func HolderName(t *Token, remote net.Addr) string {
	name := ""
	switch {
	case t != nil:
		name = t.Name
	case remote != nil:
		name = remote.String()
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
	}
	return strings.ToValidUTF8(name[:min(len(name), limiter.MaxWho)], "")
}

// tokenSet is a set of tokens, immutable once it is in force. The map's keys
// are the first eight bytes of the tokens' hashes. Comparing one takes the same
// time whatever its value, and the whole hash is compared in constant time.
type tokenSet struct{ byHash map[uint64]*Token }

func hashKey(sum *[sha256.Size]byte) uint64 { return binary.BigEndian.Uint64(sum[:8]) }

// add adds t, unless the set has a token with the same hash, which it returns instead.
func (set *tokenSet) add(t *Token) (twin *Token) {
	twin = set.byHash[hashKey(&t.hash)]
	if twin == nil {
		set.byHash[hashKey(&t.hash)] = t
	}
	return twin
}

// find returns the token in an Authorization header, or nil if it has no valid
// one. The time this takes depends on the header's length, but not on the
// tokens in the set.
func (set *tokenSet) find(authorization string) *Token {
	text, ok := bearer(authorization)
	if !ok || len(text) > maxToken {
		return nil
	}
	// The text is not copied, because it is only read.
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(text), len(text)))
	t := set.byHash[hashKey(&sum)]
	if t == nil || subtle.ConstantTimeCompare(t.hash[:], sum[:]) != 1 {
		return nil
	}
	return t
}

// bearer extracts the token from an Authorization header.
func bearer(header string) (text string, ok bool) {
	const scheme = "bearer "
	if len(header) < len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	text = strings.Trim(header[len(scheme):], " \t")
	return text, text != ""
}

// tokensFromSettings returns the tokens of the settings: api has the scopes
// check and adjust, admin has the scope admin. If both are the same, it is the
// admin token. Empty ones are left out.
func tokensFromSettings(api, admin string) *tokenSet {
	s := &tokenSet{byHash: map[uint64]*Token{}}
	if admin != "" {
		// The admin token comes first: of two equal tokens, the first stays.
		s.add(&Token{Name: adminTokenName, Scopes: ScopeAdmin, hash: sha256.Sum256([]byte(admin))})
	}
	if api != "" {
		s.add(&Token{Name: apiTokenName, Scopes: ScopeCheck | ScopeAdjust, hash: sha256.Sum256([]byte(api))})
	}
	return s
}

// tokens holds the tokens in force at a node.
type tokens struct {
	set    atomic.Pointer[tokenSet] // nil: no tokens are configured, so none is required
	config *Config
	log    *slog.Logger

	// onWithdrawn is called when a token is no longer in force.
	onWithdrawn func()

	files *reload.Files[*tokenSet] // nil: no tokens file
	stop  chan struct{}
	done  chan struct{} // closed by the goroutine that follows the file
}

// openTokens reads the tokens, and starts to follow the tokens file if there is one.
func openTokens(config *Config, log *slog.Logger, onWithdrawn func()) (*tokens, error) {
	t := &tokens{config: config, log: log, onWithdrawn: onWithdrawn, stop: make(chan struct{})}
	if config.TokensFile == "" {
		set := tokensFromSettings(config.APIToken, config.AdminToken)
		if len(set.byHash) > 0 {
			t.putInForce(set)
		}
		return t, nil
	}

	if err := t.open(); err != nil {
		return nil, err
	}

	t.done = make(chan struct{})
	go t.follow()
	return t, nil
}

// open reads the tokens file and puts its tokens in force.
func (ts *tokens) open() (err error) {
	ts.files, err = reload.Open(func() (*tokenSet, error) { return readTokens(ts.config) },
		ts.onReload, ts.config.TokensFile)
	if err == nil {
		ts.putInForce(ts.files.Current(time.Now()))
	}
	return err
}

// putInForce puts a set in force.
func (ts *tokens) putInForce(set *tokenSet) {
	admin := false
	for _, token := range set.byHash {
		admin = admin || token.Scopes.Allows(ScopeAdmin)
	}
	if !admin {
		ts.log.Warn("no token has the scope admin, so nobody can write rules", "tokens", len(set.byHash))
	}

	old := ts.set.Swap(set)
	if old != nil && old.hasMoreThan(set) {
		ts.onWithdrawn()
	}
}

// hasMoreThan reports whether set has a token that other does not have.
func (set *tokenSet) hasMoreThan(other *tokenSet) bool {
	for key, token := range set.byHash {
		if twin := other.byHash[key]; twin == nil || twin.hash != token.hash {
			return true
		}
	}
	return false
}

// TokenCache caches the token that was found for an Authorization header.
type TokenCache struct {
	set   *tokenSet // the set that has it; nil: nothing cached
	token *Token
}

// RequiresToken reports whether callers must send a token.
func (d *Doors) RequiresToken() bool { return d.tokens != nil && d.tokens.set.Load() != nil }

// Authorize returns the token of a request that needs any one of the scopes in
// need; nil if no token is required. lines is the number of Authorization
// headers: several are refused, because a proxy may have checked a different
// one. cache keeps the result while the set of tokens stays the same; nil: no
// cache.
func (d *Doors) Authorize(authorization string, lines int, need Scope, cache *TokenCache) (*Token, *Error) {
	if d.tokens == nil || need&Anyone != 0 {
		return nil, nil
	}

	set := d.tokens.set.Load()
	if set == nil {
		return nil, nil
	}
	if lines > 1 {
		return nil, Errorf(Unauthorized,
			"there are %d Authorization headers: send one, with the token as Bearer", lines)
	}

	var token *Token
	// Every reload puts another set in force, which voids all caches. So no cache
	// keeps a revoked token.
	if cache != nil && cache.set == set {
		token = cache.token
	} else if token = set.find(authorization); token != nil && cache != nil {
		*cache = TokenCache{set, token}
	}

	switch {
	case token == nil && authorization == "":
		return nil, Errorf(Unauthorized, "send a token as Authorization: Bearer")
	case token == nil:
		return nil, Errorf(Unauthorized, "this node does not know the token that was sent as Authorization: Bearer")
	case !token.Scopes.Allows(need):
		return nil, token.MissingScopeError(need)
	}

	return token, nil
}

// MissingScopeError returns the error for a token that has none of the scopes in need.
func (t *Token) MissingScopeError(need Scope) *Error {
	return Errorf(Forbidden, "this needs a token with the scope %s; %s has %s",
		strings.Join(need.Names(), " or "), t.Name, strings.Join(t.Scopes.Names(), ", "))
}
