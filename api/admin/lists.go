package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/rules"
)

const (
	// entryTime bounds how long the change of an entry is retried while it conflicts with other writes.
	entryTime = 5 * time.Second
	// maxEntryPause bounds the random pause before a retry.
	maxEntryPause = 20 * time.Millisecond

	defaultPage = 100
	maxPage     = 1000 // bound on the pieces of a page
)

// changeEntry adds an entry to a list, or removes it if the method is DELETE. It writes the whole list. If that conflicts with
// another write, it retries with the new version, unless the caller gave one in If-Match. A node changes one entry at a time,
// so conflicts come only from other nodes and from other kinds of writes.
func (s *Server) changeEntry(w http.ResponseWriter, r *http.Request, list rules.Change) error {
	entry, err := readAll(r, codec.MaxBody)
	if err != nil {
		return err
	}
	release, err := acquire(r, s.entries)
	if err != nil {
		return err
	}
	defer release()
	deadline := time.Now().Add(entryTime)
	for {
		s.catchUp(w, r)
		set := s.doors.Decider.Rules()
		if set == nil {
			return api.Errorf(api.NotReady, "there are no rules in force yet")
		}
		match, err := ifMatch(r.Header.Values("If-Match"), set.Version)
		if err != nil {
			return err
		}
		if match != 0 && match != set.Version {
			return &api.Error{Code: api.Conflict, Detail: "version " + strconv.FormatInt(set.Version, 10) + " is in force", Err: rules.ErrConflict}
		}
		c, changed, err := set.Document.ChangeEntry(list.Name, entry, r.Method == http.MethodDelete)
		if err != nil {
			return err
		}
		version := set.Version
		if changed {
			version, err = s.config.Rules.Write(r.Context(), c, cluster.WriteOptions{IfMatch: cmp.Or(match, set.Version), By: writer(r)})
		}
		if match != 0 || !errors.Is(err, rules.ErrConflict) || time.Now().After(deadline) {
			return s.answerWrite(w, r, version, changed, err)
		}
		select {
		case <-time.After(rand.N(maxEntryPause)):
		case <-r.Context().Done():
			return api.Errorf(api.Timeout, "other writes took too long")
		}
	}
}

// getTiers lists the tiers.
func (s *Server) getTiers(w http.ResponseWriter, r *http.Request) error {
	return s.getPage(w, r, "tiers", func(doc *rules.Document, after string, n int) ([]string, string) {
		return doc.ListTiers(after, n)
	})
}

// getSubjects lists the subjects of an attribute.
func (s *Server) getSubjects(w http.ResponseWriter, r *http.Request) error {
	return s.getPage(w, r, "subjects", func(doc *rules.Document, after string, n int) ([]string, string) {
		return doc.ListSubjects(r.PathValue("attribute"), after, n)
	})
}

// getPage answers with a page of what list returns, as the field name.
func (s *Server) getPage(w http.ResponseWriter, r *http.Request, name string, list func(doc *rules.Document, after string, n int) ([]string, string)) error {
	q := r.URL.Query()
	n, err := countParam(q, defaultPage, maxPage)
	if err != nil {
		return err
	}
	s.catchUp(w, r)
	set := s.doors.Decider.Rules()
	if set == nil {
		return api.Errorf(api.NotReady, "there are no rules in force yet")
	}
	pieces, next := list(set.Document, q.Get("after"), n)
	answer := map[string]any{}
	items := make([]json.RawMessage, len(pieces))
	for i, p := range pieces {
		items[i] = json.RawMessage(p)
	}
	if answer[name] = items; next != "" {
		answer["next"] = next
	}
	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(set.Version, 10)))
	return s.reply(w, answer)
}

// countParam returns the parameter n of a query, from 1 to most; usual if there is none.
func countParam(q url.Values, usual, most int) (int, error) {
	text := q.Get("n")
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, api.Errorf(api.BadValue, "n must be a whole number from 1 to %d", most)
	}
	return n, nil
}
