package resp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
)

// spec is a command that the door knows.
type spec struct {
	name string // in lower case
	// arity is how many words it has, its name included. If it is negative, there may be more.
	arity int
	// need is what the caller's token must permit, if the node has tokens.
	need api.Scope
	// asks prepares a check, which is decided with those that arrived with it. Nil:
	// run executes the command.
	asks func(*session, [][]byte, *check) failure
	// run executes the command and writes its reply. An error closes the connection.
	run func(*session, [][]byte) error
	// alone, if set, reports that these arguments must not be batched: the command is
	// then executed by run although it has asks.
	alone func([][]byte) bool
	// firstKey, lastKey and keyStep say which words are keys, as COMMAND does; 0: none.
	firstKey, lastKey, keyStep int
	// usage is the reply to a wrong number of words, if it is not that of Redis.
	usage failure
	// summary says what it is for.
	summary string
}

// anyToken is needed by commands for which any valid token will do.
const anyToken = api.ScopeCheck | api.ScopeAdjust | api.ScopeRead | api.ScopeEntries

// isSetup reports whether a command only sets up or probes the connection.
func (s *spec) isSetup() bool { return s.need == api.Anyone || s.need&anyToken == anyToken }

// specs are all commands, by name. Several files add theirs.
var specs = map[string]*spec{}

func register(list ...spec) {
	for i := range list {
		specs[list[i].name] = &list[i]
	}
}

func init() {
	register(connectSpecs()...)
	register(throttleSpecs()...)
	register(increxSpecs()...)
	register(keySpecs()...)
	register(nativeSpecs()...)
	register(slotSpecs()...)
}

// maxCommandName is the length of the longest name of a command that is looked up.
const maxCommandName = 32

// findSpec returns the command of that name, in any case; nil if there is none.
func findSpec(name []byte) *spec {
	if len(name) > maxCommandName {
		return nil
	}
	var buffer [maxCommandName]byte
	lower := buffer[:len(name)]
	for i, c := range name {
		lower[i] = toLower(c)
	}
	return specs[string(lower)]
}

// is reports whether a word of a command is text, which must be in lower case, in any case.
func is(word []byte, text string) bool {
	if len(word) != len(text) {
		return false
	}
	for i, c := range word {
		if toLower(c) != text[i] {
			return false
		}
	}
	return true
}

// toLower returns an ASCII letter in lower case, and any other byte as it is.
func toLower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// execute executes a command, or adds it to the run of checks. An error closes
// the connection after the replies.
func (c *session) execute(args [][]byte) error {
	c.stripe.Count()
	ex := c.execution
	spec := findSpec(args[0])
	if f := c.admit(spec, args); f != "" {
		// The replies to the checks before it come first.
		c.decide()
		return c.failStranger(f)
	}

	if spec.asks != nil && (spec.alone == nil || !spec.alone(args[1:])) {
		// If there is no room for another check, the run ends early, and its
		// checks are free again.
		if ex.checksUsed == maxRun || !ex.makeRoom(&c.server.Budget) {
			c.decide()
		}
		ask := ex.next()
		ask.spec = spec
		ask.failure = spec.asks(c, args[1:], ask)
		return nil
	}

	c.decide()
	start := len(ex.out.b)
	err := spec.run(c, args[1:])
	c.trace(spec, nil, nil, bytes.HasPrefix(ex.out.b[start:], []byte{'-'}))
	return err
}

// admit returns why a command is not executed: it is unknown, has too few or
// too many words, or needs another token.
func (c *session) admit(spec *spec, args [][]byte) failure {
	// A stranger does not even learn which commands there are.
	if c.isStranger() && (spec == nil || spec.need != api.Anyone) {
		return noAuth
	}
	if spec == nil {
		return failure(fmt.Sprintf("ERR unknown command '%s', rlnode limits rates: see docs/redis.md", printable(args[0])))
	}

	if spec.arity > 0 && len(args) != spec.arity || spec.arity < 0 && len(args) < -spec.arity {
		if spec.usage != "" {
			return spec.usage
		}
		return wrongArity(spec.name)
	}

	if f := c.authorize(spec.need); f != "" {
		return f
	}

	if !spec.isSetup() {
		if e := c.server.ChecksError(); e != nil {
			return failureOf(e)
		}
	}

	return ""
}

// wrongArity is the reply to a command with too few or too many words.
func wrongArity(name string) failure {
	return failure("ERR wrong number of arguments for '" + name + "' command")
}

// authorize finds the caller's token, which must permit one of the scopes in
// need.
func (c *session) authorize(need api.Scope) failure {
	token, e := c.server.Authorize(c.authorization, 1, need, &c.cache)
	c.token = token
	switch {
	case e == nil:
		if token != nil {
			c.Trust() // again, after another token was withdrawn
		}
		return ""
	case e.Code == api.Unauthorized: // it was valid, and is no more
		c.forgetToken()
		return noAuth
	}
	return failureOf(e)
}

const noAuth failure = "NOAUTH Authentication required."

// confine returns a failure if the caller's token is confined to namespaces and
// q asks about anything else.
func (c *session) confine(q *limiter.Query) failure {
	e := c.token.NamespaceError(q)
	switch {
	case e == nil:
		return ""
	case len(q.Subjects) > 0:
		return failure("ERR forbidden-namespace " + e.Detail)
	}
	return failureOf(e)
}

// failStranger writes an error reply, and counts the command if its caller has
// not shown the token that it needs.
func (c *session) failStranger(f failure) error {
	c.execution.out.fail(f)
	return c.countStranger()
}

// countStranger counts a command of a caller without the token that it needs.
// It returns an error if there have been too many.
func (c *session) countStranger() error {
	if !c.isStranger() {
		return nil
	}
	c.strangerCommands++
	if c.strangerCommands >= maxStrangerCommands {
		return errOver
	}
	return nil
}

// failureOf returns e as an error reply.
func failureOf(e *api.Error) failure {
	code := string(e.Code)
	if errors.Is(e.Err, limiter.ErrNamespace) {
		code = "forbidden-namespace"
	}
	return failure("ERR " + code + " " + e.Detail)
}

// badValue returns the failure for a word that is out of bounds.
func badValue(format string, args ...any) failure {
	return failureOf(api.Errorf(api.BadValue, format, args...))
}

// names returns the names of all commands, sorted.
func names() []string {
	list := make([]string, 0, len(specs))
	for name := range specs {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}
