package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rlnode/rlnode/internal/reload"
)

// Scope is what a token may be used for: a set of the scopes below.
type Scope uint8

// The scopes of tokens.
const (
	ScopeCheck  Scope = 1 << iota // ask for decisions
	ScopeAdjust                   // change what subjects have used, and what limits follow
	ScopeRead                     // read the admin plane
	ScopeAdmin                    // everything

	// anyone: no token is needed. It is not the zero value, so that a route for which nothing is said is closed.
	anyone Scope = 1 << 7
)

// scopeNames are the scopes as people write them.
var scopeNames = [...]struct {
	name  string
	scope Scope
}{{"check", ScopeCheck}, {"adjust", ScopeAdjust}, {"read", ScopeRead}, {"admin", ScopeAdmin}}

// ParseScopes reads names of scopes. The error names the one that is none, or stands twice.
func ParseScopes(names []string) (all Scope, err error) {
next:
	for _, name := range names {
		for _, s := range scopeNames {
			if s.name != name {
				continue
			}
			if all&s.scope != 0 {
				return 0, fmt.Errorf("%s stands twice", name)
			}
			all |= s.scope
			continue next
		}
		return 0, fmt.Errorf("there is no scope %q; the scopes are check, adjust, read and admin", excerpt(name))
	}
	if all == 0 {
		return 0, fmt.Errorf("at least one scope is needed: check, adjust, read or admin")
	}
	return all, nil
}

// names lists the scopes in s.
func (s Scope) names() (list []string) {
	for _, n := range scopeNames {
		if s&n.scope != 0 {
			list = append(list, n.name)
		}
	}
	return list
}

// allows reports whether a token with the scopes in s may do what needs one of those in need.
func (s Scope) allows(need Scope) bool { return s&(need|ScopeAdmin) != 0 }

const (
	maxToken     = 4096 // bytes of a token; a longer one is not looked at
	maxTokenName = 64   // bytes
	maxTokens    = 10_000
)

// Names of the tokens that stand in settings of their own. A tokens file can't use them.
const (
	apiTokenName   = "api-token"
	adminTokenName = "admin-token"
)

// token is what is known of a token: everything but the token.
type token struct {
	name   string
	scopes Scope
	sum    [sha256.Size]byte
}

// tokenSet holds tokens. It does not change. The map's keys are the first eight bytes of the tokens' hashes: they are compared in
// one step, whatever they are, and the rest in constant time.
type tokenSet struct{ byHash map[uint64]*token }

func hashKey(sum *[sha256.Size]byte) uint64 { return binary.BigEndian.Uint64(sum[:8]) }

// add takes one more token. Where its hash is there already, it returns the token that has it.
func (s *tokenSet) add(t *token) (twin *token) {
	if twin = s.byHash[hashKey(&t.sum)]; twin == nil {
		s.byHash[hashKey(&t.sum)] = t
	}
	return twin
}

// find returns the token that an Authorization header carries, nil without a good one. How long it takes depends on the
// header's length, and not on the tokens.
func (s *tokenSet) find(authorization string) *token {
	text, ok := bearer(authorization)
	if !ok || len(text) > maxToken {
		return nil
	}
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(text), len(text)))
	t := s.byHash[hashKey(&sum)]
	if t == nil || subtle.ConstantTimeCompare(t.sum[:], sum[:]) != 1 {
		return nil
	}
	return t
}

// bearer cuts the token out of an Authorization header.
func bearer(header string) (text string, ok bool) {
	const scheme = "bearer "
	if len(header) < len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	text = strings.Trim(header[len(scheme):], " \t")
	return text, text != ""
}

// setTokens are the tokens of the settings: of the data plane, check and adjust, and of the admin plane, everything. Where both
// are the same token, it is the admin plane's. Without any the set is empty.
func setTokens(api, admin string) *tokenSet {
	s := &tokenSet{byHash: map[uint64]*token{}}
	if admin != "" {
		s.add(&token{name: adminTokenName, scopes: ScopeAdmin, sum: sha256.Sum256([]byte(admin))})
	}
	if api != "" {
		s.add(&token{name: apiTokenName, scopes: ScopeCheck | ScopeAdjust, sum: sha256.Sum256([]byte(api))})
	}
	return s
}

// tokens are those in force at a node.
type tokens struct {
	set    atomic.Pointer[tokenSet] // nil: none, and nobody is asked for one
	config *Config
	log    *slog.Logger

	files *reload.Files[*tokenSet] // nil: there is no file
	stop  chan struct{}
	done  chan struct{} // of the goroutine that follows the file
}

// openTokens reads the tokens, and follows their file if there is one.
func openTokens(config *Config, log *slog.Logger) (*tokens, error) {
	t := &tokens{config: config, log: log, stop: make(chan struct{})}
	if config.TokensFile == "" {
		if set := setTokens(config.APIToken, config.AdminToken); len(set.byHash) > 0 {
			t.use(set)
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

// open reads the file.
func (t *tokens) open() (err error) {
	t.files, err = reload.Open(func() (*tokenSet, error) { return readTokens(t.config) }, t.reloaded, t.config.TokensFile)
	if err == nil {
		t.use(t.files.Current(time.Now()))
	}
	return err
}

// use puts a set in force.
func (t *tokens) use(set *tokenSet) {
	admin := false
	for _, one := range set.byHash {
		admin = admin || one.scopes.allows(ScopeAdmin)
	}
	if !admin {
		t.log.Warn("no token has the scope admin: nobody can write rules", "tokens", len(set.byHash))
	}
	t.set.Store(set)
}

// knownToken is a token that was found before, for the same Authorization header.
type knownToken struct {
	set  *tokenSet // in which; nil: none was
	what *token
}

// permit says whose token lets a request do what needs one of the scopes in need: nil where none is asked for. Lines is how
// many Authorization headers there are: of several, a proxy may have looked at another one. What known has of this header is not
// looked up again while the set is the same; nil: nothing is known.
func (t *tokens) permit(authorization string, lines int, need Scope, known *knownToken) (*token, *Error) {
	if t == nil || need&anyone != 0 {
		return nil, nil
	}
	set := t.set.Load()
	if set == nil {
		return nil, nil
	}
	if lines > 1 {
		return nil, errorf(Unauthorized, "there are %d Authorization headers: send one, with the token as Bearer", lines)
	}
	var who *token
	if known != nil && known.set == set {
		who = known.what
	} else if who = set.find(authorization); who != nil && known != nil {
		*known = knownToken{set, who}
	}
	switch {
	case who == nil && authorization == "":
		return nil, errorf(Unauthorized, "send a token as Authorization: Bearer")
	case who == nil:
		return nil, errorf(Unauthorized, "this node does not know the token: send one that it knows as Authorization: Bearer")
	case !who.scopes.allows(need):
		return nil, who.lacks(need)
	}
	return who, nil
}

// lacks is the error for a token without the scope that is needed.
func (t *token) lacks(need Scope) *Error {
	return errorf(Forbidden, "this needs a token with the scope %s; %s has %s", strings.Join(need.names(), " or "), t.name, strings.Join(t.scopes.names(), ", "))
}
