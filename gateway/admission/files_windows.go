package admission

func maxFiles() int64 { return 0 }
