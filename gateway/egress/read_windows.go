package egress

import "errors"

func readNow(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
