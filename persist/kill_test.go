package persist

func child(string) {}
