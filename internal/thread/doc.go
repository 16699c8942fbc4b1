// Package thread runs functions on threads that end with them. It refuses the main
// thread, which cannot end.
package thread
