package resp

import (
	"fmt"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
)

// This file has what clients send when they connect. None of it asks for a decision.

// redisVersion is the version of Redis that clients see: they derive from it
// which commands of the protocol they may send.
const redisVersion = "7.4.0"

func connectSpecs() []spec {
	return []spec{
		// A stranger shows a token with these, or leaves.
		{name: "hello", arity: -1, need: api.Anyone, run: (*session).hello,
			summary: "Chooses the protocol, and shows a token."},
		{name: "auth", arity: -2, need: api.Anyone, run: (*session).auth, summary: "Shows a token."},
		{name: "quit", arity: -1, need: api.Anyone, run: (*session).quit, summary: "Closes the connection."},
		{name: "reset", arity: 1, need: api.Anyone, run: (*session).reset, summary: "Makes the connection as new."},

		// Clients and pools send these before they use a connection.
		{name: "ping", arity: -1, need: anyToken, run: (*session).ping, summary: "Answers PONG, or what it is given."},
		{name: "echo", arity: 2, need: anyToken, run: (*session).echo, summary: "Answers what it is given."},
		{name: "select", arity: 2, need: anyToken, run: (*session).selectDatabase,
			summary: "There is only database 0."},
		{name: "client", arity: -2, need: anyToken, run: (*session).client, summary: "Names the connection."},

		// Clients send these to learn about the server.
		{name: "command", arity: -1, need: anyToken, run: (*session).command, summary: "Describes the commands."},
		{name: "config", arity: -2, need: anyToken, run: (*session).config, summary: "There is nothing to configure."},
		{name: "info", arity: -1, need: anyToken, run: (*session).info, summary: "Describes the node."},
		{name: "cluster", arity: -2, need: anyToken, run: (*session).cluster,
			summary: "Every node answers for all keys."},

		// Cluster clients send these to replicas, which there are none of.
		{name: "readonly", arity: 1, need: anyToken, run: (*session).ok, summary: "Has no effect."},
		{name: "readwrite", arity: 1, need: anyToken, run: (*session).ok, summary: "Has no effect."},
	}
}

// replyError writes an error reply, for commands that fail.
func (c *session) replyError(f failure) error {
	c.execution.out.fail(f)
	return nil
}

// ok executes commands that change nothing here.
func (c *session) ok([][]byte) error {
	c.execution.out.simple("OK")
	return nil
}

// Replies to callers without a valid token.
const (
	wrongPass     failure = "WRONGPASS invalid username-password pair or user is disabled."
	helloNeedsOne failure = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
)

// auth executes AUTH token, and AUTH user token: any user will do.
func (c *session) auth(args [][]byte) error {
	if len(args) > 2 {
		return c.failStranger("ERR syntax error")
	}
	if f := c.authenticate(args[len(args)-1]); f != "" {
		return c.failStranger(f)
	}
	return c.ok(nil)
}

// authenticate authenticates the caller by a token.
func (c *session) authenticate(token []byte) failure {
	s := c.server
	if !s.RequiresToken() {
		s.noteNeedlessToken(c.RemoteAddr())
		return ""
	}
	authorization := "Bearer " + string(token)
	if _, e := s.Authorize(authorization, 1, anyToken, nil); e != nil {
		return wrongPass
	}
	c.authorization = authorization
	c.cache = api.TokenCache{}
	c.strangerCommands = 0
	c.Trust()
	return ""
}

// forgetToken makes the caller a stranger, who may show a token again.
func (c *session) forgetToken() {
	// A stranger must not get more time by RESET.
	if c.authorization != "" {
		c.strangerSince = time.Now()
	}
	c.authorization = ""
	c.cache = api.TokenCache{}
}

// hello executes HELLO [2|3 [AUTH user token] [SETNAME name]].
func (c *session) hello(args [][]byte) error {
	resp3, f := c.resp3, failure("")
	var token, name []byte

	if len(args) > 0 {
		version, ok := parseInt(args[0])
		switch {
		case !ok:
			return c.failStranger("ERR Protocol version is not an integer or out of range")
		case version != 2 && version != 3:
			return c.failStranger("NOPROTO unsupported protocol version")
		}

		resp3 = version == 3
		token, name, f = helloOptions(args[1:])
		if f != "" {
			return c.failStranger(f)
		}
	}

	if token != nil {
		if f := c.authenticate(token); f != "" {
			return c.failStranger(f)
		}
	}

	if c.isStranger() {
		return c.failStranger(helloNeedsOne)
	}

	if name != nil && !c.setName(name) {
		return c.replyError(badName)
	}

	// The protocol changes only now: failures above are answered in the old one.
	c.resp3 = resp3
	w := &c.execution.out
	w.resp3 = resp3

	f3 := w.fields()
	f3.text("server", "redis")
	f3.text("version", redisVersion)
	f3.integer("proto", int64(c.protocol()))
	f3.integer("id", c.id)
	f3.text("mode", "standalone")
	f3.text("role", "master")
	f3.name("modules")
	w.array(0)
	f3.end()

	return nil
}

// helloOptions reads what follows the version in HELLO.
func helloOptions(args [][]byte) (token, name []byte, f failure) {
	for len(args) > 0 {
		switch {
		case is(args[0], "auth") && len(args) >= 3:
			token, args = args[2], args[3:]
		case is(args[0], "setname") && len(args) >= 2:
			name, args = args[1], args[2:]
		default:
			return nil, nil, failure(fmt.Sprintf("ERR Syntax error in HELLO option '%s'", printable(args[0])))
		}
	}
	return token, name, ""
}

// protocol returns the version of the protocol that replies have.
func (c *session) protocol() int {
	if c.resp3 {
		return 3
	}
	return 2
}

const badName failure = "ERR Client names cannot contain spaces, newlines or special characters."

// maxClientName bounds a connection's name, in bytes.
const maxClientName = 128

// setName sets the name of the connection. It reports false if name is not
// valid.
func (c *session) setName(name []byte) bool {
	if len(name) > maxClientName {
		return false
	}
	for _, char := range name {
		if char <= ' ' || char > '~' {
			return false
		}
	}
	c.name = string(name)
	return true
}

// quit executes QUIT.
func (c *session) quit([][]byte) error {
	c.execution.out.simple("OK")
	return errOver
}

// reset executes RESET.
func (c *session) reset([][]byte) error {
	c.resp3 = false
	c.name = ""
	c.forgetToken()
	c.execution.out.resp3 = false
	c.execution.out.simple("RESET")
	return c.countStranger()
}

// ping executes PING [text].
func (c *session) ping(args [][]byte) error {
	switch len(args) {
	case 0:
		c.execution.out.simple("PONG")
	case 1:
		c.execution.out.bytes(args[0])
	default:
		return c.replyError(wrongArity("ping"))
	}
	return nil
}

// echo executes ECHO text.
func (c *session) echo(args [][]byte) error {
	c.execution.out.bytes(args[0])
	return nil
}

// selectDatabase executes SELECT 0.
func (c *session) selectDatabase(args [][]byte) error {
	n, ok := parseInt(args[0])
	switch {
	case !ok:
		return c.replyError("ERR value is not an integer or out of range")
	case n != 0:
		return c.replyError("ERR DB index is out of range")
	}
	return c.ok(nil)
}

// client executes the CLIENT commands that concern only this connection.
func (c *session) client(args [][]byte) error {
	w := &c.execution.out
	what, rest := args[0], args[1:]

	switch {
	case is(what, "id") && len(rest) == 0:
		w.integer(c.id)
	case is(what, "getname") && len(rest) == 0:
		if c.name == "" {
			w.null()
			return nil
		}
		w.text(c.name)
	case is(what, "setname") && len(rest) == 1:
		if !c.setName(rest[0]) {
			return c.replyError(badName)
		}
		return c.ok(nil)
	case is(what, "setinfo") && len(rest) == 2,
		(is(what, "no-evict") || is(what, "no-touch")) && len(rest) == 1,
		is(what, "reply") && len(rest) == 1 && is(rest[0], "on"):
		return c.ok(nil)
	default:
		return c.replyError(unknownSubcommand(what, "CLIENT"))
	}

	return nil
}

// unknownSubcommand is the reply to a command whose second word is not known.
func unknownSubcommand(word []byte, command string) failure {
	return failure(fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", printable(word), command))
}

// config executes CONFIG GET, which finds nothing.
func (c *session) config(args [][]byte) error {
	if !is(args[0], "get") || len(args) < 2 {
		return c.replyError(unknownSubcommand(args[0], "CONFIG"))
	}
	c.execution.out.mapOf(0)
	return nil
}

// cluster executes CLUSTER: each node answers for all keys, so clients need not know the cluster.
func (c *session) cluster([][]byte) error {
	return c.replyError("ERR This instance has cluster support disabled")
}

// info executes INFO, whatever section it names.
func (c *session) info([][]byte) error {
	s := c.server
	loading := 0
	if s.ChecksError() != nil {
		loading = 1
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"# Server\r\nredis_version:%s\r\nredis_mode:standalone\r\nrlnode_version:%s\r\nrlnode_node:%s\r\n",
		redisVersion, s.Version, s.Node)
	fmt.Fprintf(&b, "\r\n# Persistence\r\nloading:%d\r\n\r\n# Replication\r\nrole:master\r\n", loading)
	c.execution.out.text(b.String())
	return nil
}

// command executes COMMAND, and COMMAND COUNT, DOCS, INFO and LIST.
func (c *session) command(args [][]byte) error {
	w := &c.execution.out
	switch {
	case len(args) == 0:
		w.array(len(specs))
		for _, name := range names() {
			specs[name].describe(w)
		}
	case is(args[0], "count") && len(args) == 1:
		w.integer(int64(len(specs)))
	case is(args[0], "list") && len(args) == 1:
		w.array(len(specs))
		for _, name := range names() {
			w.text(name)
		}
	case is(args[0], "info"):
		if len(args) == 1 {
			return c.command(nil)
		}

		w.array(len(args) - 1)

		for _, name := range args[1:] {
			spec := findSpec(name)
			if spec == nil {
				w.null()
				continue
			}
			spec.describe(w)
		}
	case is(args[0], "docs"):
		c.commandDocs(args[1:])
	default:
		return c.replyError(unknownSubcommand(args[0], "COMMAND"))
	}

	return nil
}

// describe writes what COMMAND says about a command.
func (s *spec) describe(w *writer) {
	w.array(10)
	w.text(s.name)
	w.integer(int64(s.arity))
	w.set(1)
	w.simple("fast")
	w.integer(int64(s.firstKey))
	w.integer(int64(s.lastKey))
	w.integer(int64(s.keyStep))
	w.set(0)
	w.array(0)
	w.array(0)
	w.array(0)
}

// commandDocs executes COMMAND DOCS.
func (c *session) commandDocs(words [][]byte) {
	var list []*spec
	for _, name := range words {
		if spec := findSpec(name); spec != nil {
			list = append(list, spec)
		}
	}

	if len(words) == 0 {
		for _, name := range names() {
			list = append(list, specs[name])
		}
	}

	w := &c.execution.out
	w.mapOf(len(list))

	for _, spec := range list {
		w.text(spec.name)
		w.mapOf(2)
		w.text("summary")
		w.text(spec.summary)
		w.text("group")
		w.text("rlnode")
	}
}
