package rules

// Document is a rules file.
type Document struct{}
