"""Plugin that fails at its first question."""


class Bad:
    name = "bad"

    def look(self, *about):
        {}["x"]
