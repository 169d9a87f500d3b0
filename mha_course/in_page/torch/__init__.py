class Tensor:
    pass


class Generator:
    pass
