package client

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// logPause is the time between two log lines that say the same.
const logPause = time.Minute

// setupCheckDelay is how long the check of the setup waits, so that it is not
// in the way of the program's first calls.
const setupCheckDelay = 100 * time.Millisecond

// setupCheckPause is how long to wait before the next attempt if no node
// answers the check of the setup.
const setupCheckPause = 5 * time.Second

// setup is what this program has configured, as far as nodes can contradict it:
// the token, and names of rules.
type setup struct {
	mu     sync.Mutex // guards the rest
	rules  map[string]bool
	logged map[string]time.Time // by the start of the line: when it was last logged
}

// hasRule reports whether name is a constant of this program.
func (s *setup) hasRule(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rules[name]
}

// add adds names of rules, and returns those that are new.
func (s *setup) add(names []string) (added []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if name != "" && !s.rules[name] {
			s.rules[name] = true
			added = append(added, name)
		}
	}
	return added
}

// mayLog reports whether a line may be logged now.
func (s *setup) mayLog(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.logged[line]; ok && time.Since(last) < logPause {
		return false
	}
	s.logged[line] = time.Now()
	return true
}

// ExpectRules adds to Options.Rules, and asks a node about the new ones in the
// background. Middleware and the interceptors call it.
func (c *Client) ExpectRules(names ...string) {
	added := c.setup.add(names)
	if len(added) > 0 {
		c.spawn(func() { c.checkSetup(added) })
	}
}

// checkSetup asks nodes until one answers whether it accepts the token and
// knows the rules, and logs what is wrong.
func (c *Client) checkSetup(rules []string) {
	body := []byte(`{"checks":[`)
	for _, name := range rules {
		// An empty key fits only a rule without key attributes, and a peek takes
		// nothing from that rule.
		body = append(appendString(append(body, `{"rule":`...), name), `,"key":[],"peek":true},`...)
	}
	body = append(closeBracket(body, ']'), '}')

	if !sleep(c.lifetime, setupCheckDelay) {
		return
	}

	for {
		ctx, cancel := context.WithTimeoutCause(c.lifetime, c.options.Timeout, ErrTimeout)
		r, err := c.ask(ctx, "/v1/check/batch", body, maxBatchAnswer, retryAlways)
		cancel()
		switch {
		case err == nil:
			c.logUnknownRules(rules, r)
			return
		case !sleep(c.lifetime, setupCheckPause):
			return
		}
	}
}

// logUnknownRules logs which rules r, the answer to checkSetup, does not know.
func (c *Client) logUnknownRules(rules []string, r *reply) {
	var a struct {
		Results []struct{ Error problem }
	}
	if r.status != http.StatusOK || r.decode(&a) != nil || len(a.Results) != len(rules) {
		return // a rejected token has been logged, and all else shows with the first check
	}
	for i, name := range rules {
		if a.Results[i].Error.Code == codeUnknownRule {
			c.logUnknownRule(name, r.node.baseURL)
		}
	}
}

func (c *Client) logUnknownRule(name, node string) {
	if c.setup.mayLog("rule " + strconv.Quote(name)) {
		c.options.Logger.Error("a rule of this program does not exist", "rule", name, "node", node)
	}
}

// IsRejection reports whether rp says that the node rejects this client.
func (rp *reply) IsRejection() bool {
	return (rp.status == http.StatusUnauthorized || rp.status == http.StatusForbidden) && rp.problem().IsRejection()
}

// IsRejection reports whether e says that the node rejects this client: its
// token is wrong, or lacks the scope.
func (e *Error) IsRejection() bool {
	return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden && e.Code == codeForbidden
}

// logRejection logs that nodes reject this client.
func (c *Client) logRejection(r *reply) {
	if c.setup.mayLog("rejection") {
		c.options.Logger.Error("nodes reject this client", "error", r.problem())
	}
}

// isMissingRule reports whether err says that a rule does not exist whose name
// is a constant of this program.
func (c *Client) isMissingRule(rule string, err error) bool {
	answered, ok := errors.AsType[*Error](err)
	if !ok || answered.Status != http.StatusNotFound || answered.Code != codeUnknownRule || !c.setup.hasRule(rule) {
		return false
	}
	c.logUnknownRule(rule, answered.Node)
	return true
}
