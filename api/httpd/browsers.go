package httpd

import "slices"

// fromPage reports whether a web page made a browser send a request. The data
// plane, which serves no pages, refuses such requests. Browsers reveal them in
// two headers that pages can't change. Every POST by a page has an Origin. That
// alone keeps pages from spending quota, even pages whose host name resolves to
// this node (DNS rebinding). Sec-Fetch-Site marks requests without an Origin,
// such as links and images. Two of its values pass: none means that a person
// typed the address, and same-origin would need a page from this node.
func fromPage(h headerLines) bool {
	return len(h.PeekAll("Origin")) > 0 || slices.ContainsFunc(h.PeekAll("Sec-Fetch-Site"), func(site []byte) bool {
		return string(site) != "none" && string(site) != "same-origin"
	})
}
