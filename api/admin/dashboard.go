package admin

import (
	"net/http"
	"strings"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/ui"
)

// dashboard serves the dashboard's files. They need no token: the page asks the user for it.
func dashboard(site *ui.Site) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		name := strings.TrimPrefix(r.URL.Path, "/ui/")
		if !site.Serve(w, r, name) {
			return api.Errorf(api.NotFound, "the dashboard has no file %s", api.Excerpt(strings.ToValidUTF8(name, "�")))
		}
		return nil
	}
}
