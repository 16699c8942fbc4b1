// Package yamlfile parses YAML strictly, and reports the position of every mistake. It refuses
// to convert values: the caller knows the keys and their types.
package yamlfile
