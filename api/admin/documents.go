package admin

import (
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/api/framing"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

const (
	maxDocument = 8 << 20 // bytes of a body on the admin plane
	// maxDiscard bounds how many bytes of an oversized body are read and discarded,
	// for senders that don't read the answer before they have sent everything.
	maxDiscard = 256 << 20
	typeYAML   = "application/yaml"
	// maxCatchUp bounds how long a read of the rules waits to catch up with writes at other nodes.
	maxCatchUp = time.Second
)

// getRules answers with the rules document in force, or an earlier version.
func (s *Server) getRules(w http.ResponseWriter, r *http.Request) error {
	s.catchUp(w, r)
	set := s.doors.Decider.Rules()
	if set == nil {
		return api.Errorf(api.NotReady, "there are no rules in force yet")
	}

	doc, version := set.Document, set.Version
	n, err := versionParam(r, "version")
	if err != nil {
		return err
	}

	if n != 0 {
		doc, version, err = s.documentOf(n)
		if err != nil {
			return err
		}
	}

	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(version, 10)))
	w.Header().Set("Vary", "Accept")

	if json, yaml := preferences(r.Header.Values("Accept")); json > yaml {
		s.sendJSON(w, doc.JSON())
	} else {
		s.sendYAML(w, doc.YAML())
	}

	return nil
}

// catchUp waits until this node has applied all earlier writes at any node, so
// that a read sees them. If it can't within maxCatchUp, it adds a header that
// says that the answer may be stale.
func (s *Server) catchUp(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), maxCatchUp)
	defer cancel()
	if err := s.config.CatchUp(ctx); err != nil {
		w.Header().Set("Rlnode-Stale", "true")
		s.doors.Logger.Debug("rules may be stale", "error", err)
	}
}

func (s *Server) sendYAML(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", typeYAML)
	w.Header().Set("Cache-Control", "no-store")
	s.send(w, body)
}

// preferences returns the weights, 0 to 1, that an Accept header gives
// explicitly to JSON and to YAML.
func preferences(accept []string) (json, yaml float64) {
	for choice := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, params, err := mime.ParseMediaType(choice)
		if err != nil {
			continue
		}

		q := 1.0
		if text, ok := params["q"]; ok {
			q, err = strconv.ParseFloat(text, 64)
			if err != nil {
				continue
			}
		}

		switch name {
		case codec.TypeJSON, "text/json":
			json = max(json, q)
		case typeYAML, "application/x-yaml", "text/yaml", "text/x-yaml":
			yaml = max(yaml, q)
		}
	}

	return json, yaml
}

// putRules replaces the whole rules document: by the body, or by an earlier version.
func (s *Server) putRules(w http.ResponseWriter, r *http.Request) error {
	n, err := versionParam(r, "version")
	if err != nil {
		return err
	}
	if n == 0 {
		return s.write(w, r, document.Change{Part: document.WholeDocument})
	}

	body, release, err := s.readDocument(r)
	if err != nil {
		return err
	}

	release()
	if strings.TrimSpace(string(body)) != "" {
		return api.Errorf(api.BadValue, "version: a document was sent, too; leave out one of them")
	}

	s.catchUp(w, r)
	doc, _, err := s.documentOf(n)
	if err != nil {
		return err
	}

	text, err := doc.Text()
	if err != nil {
		return err
	}

	return s.writeChange(w, r, document.Change{Part: document.WholeDocument, Body: []byte(text)}, rules.ViaRollback)
}

// pieceOf returns the piece of the document that r's path names.
func pieceOf(r *http.Request) (c document.Change, err error) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(r.Pattern, "/v1/"), "/")
	switch kind {
	case "rules":
		c.Part, c.Name = document.RulePart, r.PathValue("name")
	case "tiers":
		c.Part, c.Name = document.TierPart, r.PathValue("name")
	default:
		c.Part, c.Name = document.ListPart, r.PathValue("list")
		if c.Name != "allow" && c.Name != "deny" {
			return c, api.Errorf(api.NotFound, "there is no list %q: the lists are allow and deny", api.Excerpt(c.Name))
		}
	}
	return c, nil
}

// withPiece calls serve with the piece of the document that the path names.
func (s *Server) withPiece(
	serve func(http.ResponseWriter, *http.Request, document.Change) error,
) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, err := pieceOf(r)
		if err != nil {
			return err
		}
		return serve(w, r, c)
	}
}

// getPiece answers with a piece of the document; lists include the entries beside it.
func (s *Server) getPiece(w http.ResponseWriter, r *http.Request, c document.Change) error {
	return s.answerPiece(w, r, func(set *rules.Set) (asJSON, asYAML []byte, err error) {
		if c.Part == document.ListPart {
			asJSON, asYAML = set.Document.MergedList(entries.ParseKind(c.Name), set.Entries(), time.Now().UnixMilli())
			return asJSON, asYAML, nil
		}
		return set.Document.Piece(c)
	})
}

// answerPiece answers with what find returns of the rules in force, as JSON or as YAML.
func (s *Server) answerPiece(
	w http.ResponseWriter, r *http.Request, find func(*rules.Set) (asJSON, asYAML []byte, err error),
) error {
	s.catchUp(w, r)
	set := s.doors.Decider.Rules()
	if set == nil {
		return api.Errorf(api.NotReady, "there are no rules in force yet")
	}
	asJSON, asYAML, err := find(set)
	if err != nil {
		return err
	}

	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(set.Version, 10)))
	w.Header().Set("Vary", "Accept")
	json, yaml := preferences(r.Header.Values("Accept"))
	if yaml > json {
		s.sendYAML(w, asYAML)
	} else {
		s.sendJSON(w, asJSON) // JSON is YAML too
	}
	return nil
}

// write makes the change c, with r's body, and answers with the new version.
func (s *Server) write(w http.ResponseWriter, r *http.Request, c document.Change) error {
	if !c.Delete {
		body, release, err := s.readDocument(r)
		if err != nil {
			return err
		}
		defer release()
		c.Body = body

		var doc *document.Document
		if set := s.doors.Decider.Rules(); set != nil {
			doc = set.Document
		}
		if err := doc.ReviewPiece(c); err != nil {
			return err
		}
	}

	via := r.URL.Query().Get("via")
	// A body that a caller sends is neither a rollback, which names a version, nor
	// a seed.
	if !rules.IsVia(via) || via == rules.ViaRollback || via == rules.ViaSeed {
		return api.Errorf(api.BadValue, "via is not one of apply, restore, dashboard")
	}
	return s.writeChange(w, r, c, via)
}

// writeChange makes the change c, under the conditions of r's headers, and
// answers with the new version.
func (s *Server) writeChange(w http.ResponseWriter, r *http.Request, c document.Change, via string) error {
	options, err := writeOptions(r, via)
	if err != nil {
		return err
	}

	release, err := acquire(r, s.writes)
	if err != nil {
		return err
	}

	defer release()

	current := int64(0)
	if set := s.doors.Decider.Rules(); set != nil {
		current = set.Version
	}

	options.IfMatch, err = ifMatch(r.Header.Values("If-Match"), current)
	if err != nil {
		return err
	}

	version, err := s.config.Rules.Write(r.Context(), c, options)
	return s.answerWrite(w, r, version, true, err)
}

// writeOptions returns the author of a write, how it is made and why.
func writeOptions(r *http.Request, via string) (cluster.WriteOptions, error) {
	message := r.URL.Query().Get("message")
	if len(message) > rules.MaxMessage || !utf8.ValidString(message) {
		return cluster.WriteOptions{}, api.Errorf(api.BadValue,
			"message must be at most %d bytes of UTF-8", rules.MaxMessage)
	}
	// A document that was in force before need not pass a newer release's review.
	readopt := via == rules.ViaRollback || via == rules.ViaRestore
	return cluster.WriteOptions{By: callerWithAddress(r), Message: message, Via: via, Readopt: readopt}, nil
}

// acquire waits until writes has room for another write, or another comparison.
// The caller must call release when it is done.
func acquire(r *http.Request, writes chan struct{}) (release func(), err error) {
	select {
	case writes <- struct{}{}:
		return func() { <-writes }, nil
	case <-r.Context().Done():
		return nil, api.Errorf(api.Timeout, "other writes took too long")
	}
}

// Written is the answer to a write of rules.
type Written struct {
	Version  int64            `json:"version"`
	Warnings []document.Error `json:"warnings,omitempty"` // what part of the rules has no effect
	Notes    []string         `json:"notes,omitempty"`    // what else the change means, such as that counts begin anew
}

// answerWrite answers a write that returned version and err. changed is false
// if the write turned out to be unnecessary.
func (s *Server) answerWrite(w http.ResponseWriter, r *http.Request, version int64, changed bool, err error) error {
	if err != nil {
		return writeError(err)
	}

	if changed {
		s.doors.Logger.Debug("rules written", "version", version, "by", callerWithAddress(r))
	}

	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(version, 10)))
	report := Written{Version: version}
	if set := s.doors.Decider.Rules(); set != nil && set.Version == version {
		report.Warnings = set.Document.Warnings()
		if changed {
			report.Notes = s.notes(version)
		}
	}

	return s.reply(w, report)
}

// writeError returns err as an Error. A failure of the store becomes
// WriteFailed instead of Internal.
func writeError(err error) error {
	e := asError(err)
	if e.Code != api.Internal {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &api.Error{Code: api.Timeout,
			Detail: "the write took too long; whether it took effect is unknown", Err: err}
	}
	return &api.Error{Code: api.WriteFailed,
		Detail: "the change could not be stored and is not in force: " + err.Error(), Err: err}
}

// maxCallerName bounds a caller's name in the list of versions, in bytes.
const maxCallerName = 128

// callerWithAddress returns the author of a change, for logs and the list of
// versions: the address, after the name of the token if there is one.
func callerWithAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	by := host
	if t := tokenFrom(r); t != nil {
		by = t.Name + " (" + host + ")"
	}
	return strings.ToValidUTF8(by[:min(len(by), maxCallerName)], "")
}

// callerName returns the name of the token, or else the address.
func callerName(r *http.Request) string {
	if t := tokenFrom(r); t != nil {
		return strings.ToValidUTF8(t.Name[:min(len(t.Name), maxCallerName)], "")
	}
	return callerWithAddress(r)
}

// ifMatch parses If-Match and returns the version that must be in force; 0:
// any. Quotes and W/ are optional.
func ifMatch(values []string, current int64) (version int64, err error) {
	text := strings.Join(values, ",")
	if strings.TrimSpace(text) == "" {
		return 0, nil
	}

	for tag := range strings.SplitSeq(text, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == "*" {
			return 0, nil
		}

		if unquoted, ok := strings.CutPrefix(tag, `"`); ok {
			tag, ok = strings.CutSuffix(unquoted, `"`)
			if !ok {
				return 0, invalidIfMatch()
			}
		}

		n, err := strconv.ParseInt(tag, 10, 64)
		if err != nil || n < 0 {
			return 0, invalidIfMatch()
		}

		// If several versions are listed, prefer the current one. A 0 must not be
		// returned: it would mean no condition.
		if version == 0 || n == current {
			version = n
		}
	}

	if version == 0 {
		return 0, &api.Error{Code: api.Conflict, Detail: "If-Match: there is no version 0", Err: rules.ErrConflict}
	}

	return version, nil
}

func invalidIfMatch() *api.Error {
	return api.Errorf(api.BadValue, `If-Match must be * or a version, such as "17"`)
}

// readForm reads and parses a body of form f and at most bound bytes.
func readForm(r *http.Request, f *codec.Form, bound int) (*codec.Request, error) {
	body, err := readAll(r, bound)
	if err != nil {
		return nil, err
	}
	var s codec.Decoder
	q := &codec.Request{}
	if e := s.Read(body, f, q); e != nil {
		return nil, e
	}
	return q, nil
}

// readAll reads a body of at most bound bytes.
func readAll(r *http.Request, bound int) ([]byte, error) {
	if r.ContentLength > int64(bound) && r.Header.Get("Expect") != "" {
		return nil, api.TooLargeError(bound) // the caller waits for 100 Continue, and has not sent the body
	}

	body, err := awaitBody(r, func() ([]byte, error) {
		body, err := io.ReadAll(io.LimitReader(r.Body, int64(bound)+1))
		if err == nil && len(body) > bound {
			_, _ = io.CopyN(io.Discard, r.Body, maxDiscard) // an error changes nothing
		}
		return body, err
	})
	if err := bodyError(body, bound, err); err != nil {
		return nil, err
	}

	return body, nil
}

// bodyError returns the error for a body that ended with err, and must not have
// more than most bytes.
func bodyError(body []byte, most int, err error) error {
	refused, full := framing.Error(""), (*api.Error)(nil)
	switch {
	case errors.As(err, &refused):
		return api.FramingError(refused)
	case errors.As(err, &full):
		return full
	case err != nil:
		return api.ReceiveError(err)
	case len(body) > most:
		return api.TooLargeError(most)
	}
	return nil
}

// readDocument reads a document. The document is charged to the budget as it
// arrives, until release is called.
func (s *Server) readDocument(r *http.Request) (body []byte, release func(), err error) {
	if r.ContentLength > maxDocument && r.Header.Get("Expect") != "" {
		return nil, nil, api.TooLargeError(maxDocument) // the caller waits for 100 Continue, and has not sent the body
	}

	var arriving api.Transfer
	charged := 0
	budget := &s.doors.Budget
	release = func() {
		if charged > 0 {
			budget.Release(&arriving)
		}
	}

	body, err = awaitBody(r, func() ([]byte, error) {
		var b []byte
		for {
			if len(b) == cap(b) {
				size := min(max(4096, 2*cap(b)), maxDocument+1)
				if size == cap(b) {
					_, _ = io.CopyN(io.Discard, r.Body, maxDiscard) // an error changes nothing
					return b, nil
				}

				release()
				charged = 0
				if size > api.UnchargedBytes {
					if !budget.Hold(&arriving, int64(size), connectionOf(r)) {
						return nil, budget.FullError()
					}
					charged = size
				}

				b = append(make([]byte, 0, size), b...)
			}

			n, err := r.Body.Read(b[len(b):cap(b)])
			b = b[:len(b)+n]
			if err == io.EOF {
				return b, nil
			}
			if err != nil {
				return nil, err
			}
		}
	})
	if err == nil {
		// The body has arrived: from here on its caller is not slow.
		budget.Finish(&arriving)
	}

	err = bodyError(body, maxDocument, err)
	if err != nil {
		release()
		return nil, nil, err
	}

	return body, release, nil
}

// Versions is the answer to GET /v1/rules/versions, newest first.
type Versions struct {
	Versions []rules.Version `json:"versions"`
}

// getVersions lists the latest versions of the rules.
func (s *Server) getVersions(w http.ResponseWriter, r *http.Request) error {
	s.catchUp(w, r)
	return s.reply(w, Versions{append([]rules.Version{}, s.config.Rules.Versions()...)})
}
