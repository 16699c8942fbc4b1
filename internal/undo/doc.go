// Package undo keeps the steps that undo a task, complete or not. It refuses to
// stop at the first step that fails.
package undo
