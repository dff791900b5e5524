package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/rules/document"
)

// post returns a request with a body in JSON.
func post(path string, body []byte) request {
	return request{method: http.MethodPost, path: path, contentType: "application/json", body: body}
}

// postFields returns a request with a body of fields: strings, whole numbers
// and lists of these.
func postFields(path string, fields map[string]any) request {
	body, _ := json.Marshal(fields) // strings and numbers can't fail
	return post(path, body)
}

// sendAndPrint sends r to the node that connect returns and prints the answer,
// either raw or formatted by text.
func sendAndPrint[T any](
	env *environment, connect func() (*remote, error), asJSON bool, r request, text func(io.Writer, *T) error,
) error {
	n, err := connect()
	if err != nil {
		return err
	}
	answer, err := n.send(env.ctx, r)
	if err != nil {
		return err
	}
	return printReply(env, asJSON, answer, text)
}

// printReply prints an answer, either raw or formatted by text.
func printReply[T any](env *environment, asJSON bool, r *reply, text func(io.Writer, *T) error) error {
	r.warnStale(env)
	if asJSON {
		_, err := fmt.Fprintf(env.stdout, "%s\n", bytes.TrimSpace(r.body))
		return err
	}
	v := new(T)
	if err := r.decode(v); err != nil {
		return err
	}
	return text(env.stdout, v)
}

// remote is a client of one plane of a node.
type remote struct {
	base      string // scheme and host
	flag      string // the flag that set base
	token     string
	tokenVar  string                                  // the variable that may hold the token
	timeoutOr func(usual time.Duration) time.Duration // how long to wait for an answer
	transport *http.Transport
}

// maxReply bounds an answer, in bytes. The largest is a document of rules: 8
// MiB before JSON encoding.
const maxReply = 64 << 20

// request is one call to a node.
type request struct {
	method      string // GET if empty
	path        string // escaped
	query       url.Values
	contentType string
	accept      string
	ifMatch     string
	body        []byte
	timeout     time.Duration // how long to wait for the answer without --timeout; 0: defaultTimeout
}

// timeoutFor returns how long rm waits for the answer.
func (r *request) timeoutFor(rm *remote) time.Duration {
	return rm.timeoutOr(cmp.Or(r.timeout, defaultTimeout))
}

// reply is a node's answer of any status.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// warnStale warns of an answer of a node that does not reach the leader.
func (r *reply) warnStale(env *environment) {
	if r.header.Get("Rlnode-Stale") != "" {
		fmt.Fprintln(env.stderr, "the node does not reach the cluster's leader: its answer may lack the latest changes")
	}
}

// send makes a call. A status of 300 or above becomes an error with the node's explanation.
func (rm *remote) send(ctx context.Context, r request) (*reply, error) {
	answer, err := rm.exchange(ctx, r)
	if err != nil {
		return nil, err
	}
	if answer.status >= 300 {
		return nil, rm.problem(answer)
	}
	return answer, nil
}

// problem returns the error that an answer reports, with a hint at flags that
// may help. Where a code stands for mistakes of several kinds, the first words
// of the detail tell them apart: api/admin/admin.go, api/codec/read.go and
// limiter.ErrKey have these.
func (rm *remote) problem(answer *reply) *problem {
	p := newProblem(answer)
	switch {
	case p.Status == http.StatusUnauthorized && rm.token == "":
		p.hint = "; set it with --token-file, or " + rm.tokenVar + " in the environment"
	case p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden:
		p.hint = "; it comes from --token, --token-file, " + rm.tokenVar + " or " + rm.tokenVar + "_FILE"
	case p.Code == "not-found" && strings.HasPrefix(p.Detail, "there is nothing at"):
		p.hint = "; is " + rm.base + " the right plane for " + rm.flag + "? " + planes
	case p.Code == "method-not-allowed":
		p.hint = "; is " + rm.base + " the right plane for " + rm.flag + "? " + planes
	case strings.HasPrefix(p.Detail, "key: key does not fit"), strings.HasPrefix(p.Detail, "key is missing"):
		p.hint = "; give the subject with --key, once for each of the rule's key attributes"
	}

	return p
}

// exchange makes a call and returns the answer, regardless of its status.
func (rm *remote) exchange(ctx context.Context, r request) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeoutFor(rm))
	defer cancel()
	resp, err := rm.open(ctx, r)
	if err != nil {
		return nil, err
	}
	return rm.read(resp, r.timeoutFor(rm))
}

// open makes a call and returns the answer before its body is read.
func (rm *remote) open(ctx context.Context, r request) (*http.Response, error) {
	target := rm.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}

	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", rm.base, err)
	}

	authorization := ""
	if rm.token != "" {
		authorization = "Bearer " + rm.token
	}

	for name, value := range map[string]string{
		"Content-Type": r.contentType, "Accept": r.accept, "If-Match": r.ifMatch, "Authorization": authorization,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}

	client := &http.Client{
		Transport: rm.transport,
		// No node redirects. If a proxy does, a write would become a read.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, rm.unreachable(err, r.timeoutFor(rm))
	}

	return resp, nil
}

// read reads an answer to its end. timeout is how long the call waits for the
// answer, for messages.
func (rm *remote) read(resp *http.Response, timeout time.Duration) (*reply, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return nil, rm.unreachable(err, timeout)
	}
	if len(body) > maxReply {
		return nil, fmt.Errorf("ask %s: the answer is longer than %d bytes", rm.base, maxReply)
	}
	return &reply{status: resp.StatusCode, header: resp.Header, body: body}, nil
}

// unreachable explains in one line why no answer arrived within timeout.
func (rm *remote) unreachable(err error, timeout time.Duration) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer from %s within %v", rm.base, timeout)
	}
	return fmt.Errorf("can't reach a node at %s: %w%s", rm.base, err, rm.hint(err))
}

// hint says what to do about an error without an answer; empty if that is not known.
func (rm *remote) hint(err error) string {
	plain := strings.HasPrefix(rm.base, "http://")
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "; is it running? " + planes
	}
	if plain && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)) {
		return "; if the node has --http-cert, its address begins with https://"
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return "; if the node has no --http-cert, its address begins with http://"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "; name the file with the certificate that signed the node's: --ca FILE, or RLNODE_CA"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "; use a name or an address that the certificate is for"
	}

	return ""
}

// planes is a hint to the planes' default ports.
const planes = "The data plane (--addr) is on port 8080 and the admin plane (--admin) on 8081, unless serve's flags say otherwise"

// problem is an answer that reports an error.
type problem struct {
	Status int
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	Errors []document.Error
	hint   string
}

func newProblem(r *reply) *problem {
	p := &problem{}
	if err := json.Unmarshal(r.body, p); err != nil || p.Title == "" && p.Detail == "" {
		p = &problem{Title: http.StatusText(r.status), Detail: "without a reason; is this a node of rlnode?"}
	}
	p.Status = r.status
	if to := r.header.Get("Location"); to != "" {
		p.Detail = fmt.Sprintf("it redirects to %q, which is not followed: give the address of a node", to)
	}
	return p
}

// Error returns the node's explanation.
func (p *problem) Error() string {
	text := cmp.Or(p.Detail, p.Title)
	if p.Code != "" {
		return fmt.Sprintf("the node answers %d %s: %s%s", p.Status, p.Code, text, p.hint)
	}
	return fmt.Sprintf("the node answers %d: %s%s", p.Status, text, p.hint)
}

// decides reports whether r is a decision. A 403 with the code denied is a
// decision. With any other code, it is an error.
func (r *reply) decides() bool {
	return r.status == http.StatusOK || r.status == http.StatusTooManyRequests ||
		r.status == http.StatusForbidden && newProblem(r).Code == "denied"
}

// decode reads an answer's JSON into v.
func (r *reply) decode(v any) error {
	if err := json.Unmarshal(r.body, v); err != nil {
		return fmt.Errorf("read the node's answer: %w", err)
	}
	return nil
}

// subjectQuery returns a query for a rule's subject. The key is its single
// value, or a JSON array of several.
func subjectQuery(rule string, key []string) url.Values {
	query := url.Values{"rule": {rule}}
	if len(key) == 1 {
		query.Set("key", key[0])
	} else if len(key) > 1 {
		text, _ := json.Marshal(key) // strings and numbers can't fail
		query.Set("key", string(text))
	}
	return query
}
