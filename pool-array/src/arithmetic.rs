//! Operators of arrays in host memory. A result is in the memory of an operand that is passed by
//! value, or else in new memory of the pool of the left side.

use super::PooledArray;
use bytemuck::Pod;
use pool_core::port::HostMemory;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

/// Implements an operator for `&a + &b`, `a + &b` (which reuses the memory of `a`), `&a + 1.0`,
/// `a + 1.0`, `a += &b` and `a += 1.0`.
macro_rules! operator {
    ($operator:ident $call:ident, $assign:ident $call_assign:ident) => {
        /// # Panics
        ///
        /// If the shapes differ or the pool refuses the result;
        /// [`PooledArray::zip_with`] returns the error.
        impl<T: Pod + $operator<Output = T>, A: HostMemory> $operator<&PooledArray<T, A>>
            for &PooledArray<T, A>
        {
            type Output = PooledArray<T, A>;

            fn $call(self, other: &PooledArray<T, A>) -> PooledArray<T, A> {
                done(self.zip_with(other, $operator::$call))
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $operator<PooledArray<T, A>>
            for &PooledArray<T, A>
        {
            type Output = PooledArray<T, A>;

            fn $call(self, mut other: PooledArray<T, A>) -> PooledArray<T, A> {
                same_shape(self, &other);
                for (to, left) in other.iter_mut().zip(self.iter()) {
                    *to = left.$call(*to);
                }
                other
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $operator<&PooledArray<T, A>>
            for PooledArray<T, A>
        {
            type Output = Self;

            fn $call(mut self, other: &Self) -> Self {
                self.$call_assign(other);
                self
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $operator for PooledArray<T, A> {
            type Output = Self;

            fn $call(mut self, other: Self) -> Self {
                self.$call_assign(&other);
                self
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $operator<T> for &PooledArray<T, A> {
            type Output = PooledArray<T, A>;

            fn $call(self, value: T) -> PooledArray<T, A> {
                done(self.map(|element| element.$call(value)))
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $operator<T> for PooledArray<T, A> {
            type Output = Self;

            fn $call(mut self, value: T) -> Self {
                self.$call_assign(value);
                self
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $assign<&Self> for PooledArray<T, A> {
            fn $call_assign(&mut self, other: &Self) {
                same_shape(self, other);
                for (to, right) in self.iter_mut().zip(other.iter()) {
                    *to = to.$call(*right);
                }
            }
        }

        impl<T: Pod + $operator<Output = T>, A: HostMemory> $assign<T> for PooledArray<T, A> {
            fn $call_assign(&mut self, value: T) {
                self.iter_mut().for_each(|to| *to = to.$call(value));
            }
        }
    };
}

operator!(Add add, AddAssign add_assign);
operator!(Sub sub, SubAssign sub_assign);
operator!(Mul mul, MulAssign mul_assign);
operator!(Div div, DivAssign div_assign);

/// # Panics
///
/// If the pool refuses the result; [`PooledArray::map`] returns the error.
impl<T: Pod + Neg<Output = T>, A: HostMemory> Neg for &PooledArray<T, A> {
    type Output = PooledArray<T, A>;

    fn neg(self) -> PooledArray<T, A> {
        done(self.map(|element| -*element))
    }
}

impl<T: Pod + Neg<Output = T>, A: HostMemory> Neg for PooledArray<T, A> {
    type Output = Self;

    fn neg(mut self) -> Self {
        self.iter_mut().for_each(|element| *element = -*element);
        self
    }
}

#[expect(clippy::panic, reason = "an operator cannot fail")]
fn done<T>(result: Result<T, pool_core::AllocError>) -> T {
    result.unwrap_or_else(|error| panic!("operator of arrays: {error}"))
}

fn same_shape<T: Pod, A: HostMemory>(a: &PooledArray<T, A>, b: &PooledArray<T, A>) {
    assert!(a.shape == b.shape, "operator of arrays of the shapes {:?} and {:?}", a.shape, b.shape);
}
