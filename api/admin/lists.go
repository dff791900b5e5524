package admin

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/rules"
)

const (
	defaultPage = 100
	maxPage     = 1000 // bound on the pieces of a page
)

// getTiers lists the tiers.
func (s *Server) getTiers(w http.ResponseWriter, r *http.Request) error {
	return s.getPage(w, r, "tiers", func(set *rules.Set, after string, n int) ([]string, string) {
		return set.Document.ListTiers(after, n)
	})
}

// getSubjects lists the subjects of an attribute, in the document and beside it.
func (s *Server) getSubjects(w http.ResponseWriter, r *http.Request) error {
	return s.getPage(w, r, "subjects", func(set *rules.Set, after string, n int) ([]string, string) {
		return set.Document.ListSubjects(r.PathValue("attribute"), after, n, set.Entries(), time.Now().UnixMilli())
	})
}

// getPage answers with a page of what list returns, as the field name.
func (s *Server) getPage(
	w http.ResponseWriter, r *http.Request, name string,
	list func(set *rules.Set, after string, n int) ([]string, string),
) error {
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

	pieces, next := list(set, q.Get("after"), n)
	answer := map[string]any{}
	items := make([]json.RawMessage, len(pieces))
	for i, p := range pieces {
		items[i] = json.RawMessage(p)
	}

	answer[name] = items
	if next != "" {
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
