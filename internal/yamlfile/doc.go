// Package yamlfile reads the syntax of a file of YAML strictly, with the place of every
// mistake. It refuses to convert a value: that is the work of who knows the keys.
package yamlfile
