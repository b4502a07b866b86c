package history

import "fmt"

// WrongError is a question that cannot be answered because of how it was
// asked: a sentence that says what to ask instead.
type WrongError struct{ Text string }

func (e *WrongError) Error() string { return e.Text }

func wrong(format string, args ...any) error { return &WrongError{fmt.Sprintf(format, args...)} }
