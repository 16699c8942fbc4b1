// Package undo keeps what a half-finished or ended job has to undo. It refuses to stop
// at the first step that fails.
package undo
