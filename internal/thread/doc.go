// Package thread runs functions on OS threads that are terminated afterwards. It refuses to
// use the main thread, which cannot be terminated.
package thread
