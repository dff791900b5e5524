// Package ui is the dashboard: the embedded files that a browser needs, and the handler that serves them.
//
// The files are written by hand and served unchanged: HTML, one style sheet and JavaScript modules, with no build step and
// nothing from other sites. While the page is visible, it fetches JSON from its own node once a second.
//
// Data from a node is untrusted: callers choose rule names, keys and attributes. The page puts them only into text nodes and
// attributes that it creates, never into markup, and the content security policy blocks any script in them.
package ui
